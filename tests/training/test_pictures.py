"""What the pictures of a network show."""

import pytest
import torch

import simnets
from simnets.nn import ConvSimilarity2d
from simnets.training.pictures import _templates_as_patches, parameters


@pytest.mark.parametrize("depthwise", [False, True])
@pytest.mark.parametrize("weights_mode", ["none", "learned"])
def test_linear_templates_are_drawn_as_the_filters_they_amount_to(depthwise: bool, weights_mode: str) -> None:
    torch.manual_seed(0)
    d = 3 if depthwise else 4
    layer = ConvSimilarity2d(3, d, 7, 5, kind="linear", weights_mode=weights_mode, depthwise=depthwise)
    if layer.similarity.weights is not None:
        layer.similarity.weights = torch.rand(7, d) + 0.5
    layer = layer.double()
    filters, formula = _templates_as_patches(layer)
    assert filters.shape == (7, 3, 5, 5)
    assert formula == "filters Wᵀ(u∘z)"
    x = torch.randn(2, 3, 5, 5, dtype=torch.float64)
    expected = layer(x) - layer(torch.zeros_like(x))
    torch.testing.assert_close(torch.einsum("nchw,lchw->nl", x, filters), expected[:, :, 0, 0])


@pytest.mark.parametrize("depthwise", [False, True])
@pytest.mark.parametrize("conv_bias_mode", ["none", "learned"])
def test_other_templates_are_drawn_as_the_patches_that_match(depthwise: bool, conv_bias_mode: str) -> None:
    torch.manual_seed(0)
    d = 3 if depthwise else 4
    layer = ConvSimilarity2d(3, d, 7, 5, conv_bias_mode=conv_bias_mode, depthwise=depthwise).double()
    patches, _ = _templates_as_patches(layer)
    torch.testing.assert_close(layer.whiten(patches)[:, :, 0, 0], layer.similarity.templates)


def test_templates_far_away_are_drawn_as_the_filters_they_nearly_are() -> None:
    torch.manual_seed(0)
    layer = ConvSimilarity2d(3, 4, 7, 5).double()
    layer.similarity.templates = 20 * torch.randn(7, 4)
    layer.similarity.weights = torch.rand(7, 4) / 100
    filters, formula = _templates_as_patches(layer)
    assert formula == "filters Wᵀ(2u∘z)"
    layer.conv_bias = torch.zeros(4)  # so that a patch of zeros has y = 0
    x = 1e-6 * torch.randn(2, 3, 5, 5, dtype=torch.float64)
    expected = layer(x) - layer(torch.zeros_like(x))
    found = torch.einsum("nchw,lchw->nl", x, filters)
    torch.testing.assert_close(found, expected[:, :, 0, 0], rtol=1e-3, atol=1e-10)


def test_every_family_has_its_picture() -> None:
    drawn = parameters(simnets.create_model("simnet2_plus"))
    assert {"layers_0_conv_similarity_filters", "layers_0_conv_similarity_templates"} <= set(drawn)
    assert "classify_offsets" in drawn
    assert all(picture.startswith(b"\x89PNG") for picture in drawn.values())
