"""`Similarity2d`: similarities of patches, section 4.1."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F
from layer_contract import F64, ImageLayerContract, refused, shared_family
from test_similarity_layer import formula
from torch import Tensor

from simnets.nn import Similarity, Similarity2d


def patch_loop(x: Tensor, layer: Any) -> Tensor:
    """(N, C, H, W) → (N, H', W', C·kh·kw), one patch at a time."""
    (ph, pw), (kh, kw), (sh, sw) = layer.padding, layer.kernel_size, layer.stride
    x = F.pad(x, (pw, pw, ph, ph), value=layer.padding_value)
    tops, lefts = range(0, x.shape[2] - kh + 1, sh), range(0, x.shape[3] - kw + 1, sw)
    rows = [
        torch.stack([x[:, :, top : top + kh, left : left + kw].flatten(1) for left in lefts], 1)
        for top in tops
    ]
    return torch.stack(rows, 1)


class TestSimilarity2d(ImageLayerContract):
    variants: ClassVar[dict[str, dict[str, Any]]] = {
        "l2": {"bias_mode": "learned"},
        "l2_padded": {"padding": 1, "padding_value": 0.7, "normalization": True},
        "l2_no_weights": {"weights_mode": "none", "stride": 2},
        "linear": {"kind": "linear", "padding": (1, 0)},
        "l1": {"p": 1.0, "kernel_size": (3, 2), "stride": (1, 2)},
        "learned_p": {"p": 1.5, "p_mode": "learned"},
        "missing": {
            "padding": 1,
            "padding_value": math.nan,
            "nan_policy": "omit",
            "normalization": True,
            "p": 1.5,
        },
        "normalized_patches": {"normalize_patches": True},
        "normalized_missing": {
            "normalize_patches": True,
            "padding": 1,
            "padding_value": math.nan,
            "nan_policy": "omit",
        },
    }

    traced = ("l2_padded", "l1", "normalized_missing")

    def make(self, **options: Any) -> Similarity2d:
        return Similarity2d(2, 3, **{"kernel_size": 3, **options})

    def input(self, count: int = 2, dtype: torch.dtype = F64) -> Tensor:
        return torch.randn(count, 2, 5, 6, dtype=dtype)

    def expected(self, layer: Similarity2d, x: Tensor) -> Tensor:
        rows = patch_loop(x, layer)
        if layer.normalize_patches:
            observed = [[row[~row.isnan()] for row in image.flatten(0, 1)] for image in rows]
            mean = torch.stack([torch.stack([row.mean() for row in image]) for image in observed])
            std = torch.stack([torch.stack([row.std(correction=0) for row in image]) for image in observed])
            shape = (*rows.shape[:-1], 1)
            rows = (rows - mean.view(shape)) / (std.view(shape) + 1e-5)
        return formula(layer.similarity, rows).movedim(-1, 1)


@pytest.mark.parametrize("value", [math.nan, -math.inf, math.inf])
def test_any_value_can_lie_outside_of_the_image(value: float) -> None:
    layer = Similarity2d(2, 3, 3, padding=1, padding_value=value)
    result = layer(torch.randn(1, 2, 5, 5))
    border = torch.ones(5, 5, dtype=torch.bool)
    border[1:-1, 1:-1] = False
    assert result[:, :, ~border].isfinite().all()
    outside = result[:, :, border]
    assert outside.isnan().all() if math.isnan(value) else (outside == -math.inf).all()


def test_flat_patches_are_zero_with_a_finite_gradient() -> None:
    layer = Similarity2d(1, 2, 3, normalize_patches=True)
    x = torch.full((1, 1, 3, 3), 0.25, requires_grad=True)
    result = layer(x)
    zero = layer.similarity(torch.zeros(9))
    torch.testing.assert_close(result.flatten(), zero)
    result.sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()


def test_convolved_squares_stay_accurate_far_from_zero() -> None:
    layer, x = Similarity2d(2, 3, 3), torch.randn(2, 2, 6, 6)
    exact = formula(layer.similarity, patch_loop(x, layer)).movedim(-1, 1)
    layer.similarity.templates = layer.similarity.templates + 100
    far = layer(x + 100)
    # what remains is the rounding of x + 100 and z + 100 themselves, 4e-6
    torch.testing.assert_close(far, exact, rtol=1e-4, atol=0)


def test_sharing_from_another_image_layer_or_from_a_similarity() -> None:
    source = Similarity2d(2, 3, 3)
    shared_family(source.similarity, Similarity2d(2, 3, 3, templates_mode=source).similarity, "templates")
    rows = Similarity(18, 3)
    shared_family(rows, Similarity2d(2, 3, 3, weights_mode=rows).similarity, "weights")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kernel_size": 0}, "kernel_size=0: expected an int or a pair of ints, at least 1"),
        ({"kernel_size": (3, 3, 3)}, "kernel_size="),
        ({"stride": 0}, "stride=0"),
        ({"padding": -1}, "padding=-1"),
        ({"padding": "same"}, "padding='same'"),
        ({"in_channels": 0}, "in_features=0"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with refused(message):
        Similarity2d(**{"in_channels": 2, "out_channels": 3, "kernel_size": 3, **options})


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((2, 5, 5), r"x: expected images of shape \(N, 2, H, W\), got \(2, 5, 5\)"),
        ((1, 3, 5, 5), r"x: expected images of shape \(N, 2, H, W\), got \(1, 3, 5, 5\)"),
        ((1, 2, 2, 5), r"x: maps of 2×5 with padding \(0, 0\) are smaller than kernel_size \(3, 3\)"),
    ],
)
def test_bad_x(shape: tuple[int, ...], message: str) -> None:
    with refused(message):
        Similarity2d(2, 3, 3)(torch.zeros(shape))
