"""Augmentation against a loop over images and pixels, and the properties that it must have."""

from typing import Any

import numpy as np
import pytest
import torch

from simnets.data import Augmentation, augment
from simnets.data.augmentation import Draws
from simnets.errors import SimNetsError


def by_hand(image: np.ndarray, flip: bool, dy: int, dx: int, cy: int, cx: int, a: Augmentation) -> np.ndarray:
    """One image (C, H, W), pixel by pixel: output (y, x) shows what lies dy below and dx to the right."""
    _, h, w = image.shape
    out = np.zeros_like(image)
    for y in range(h):
        for x in range(w):
            sy, sx = y + dy, (w - 1 - x if flip else x) + dx
            if a.padding == "reflect":
                sy, sx = (-v if v < 0 else 2 * (n - 1) - v if v >= n else v for v, n in ((sy, h), (sx, w)))
            if 0 <= sy < h and 0 <= sx < w:
                out[:, y, x] = image[:, sy, sx]
            first_y, first_x = cy - a.cutout // 2, cx - a.cutout // 2
            if first_y <= y < first_y + a.cutout and first_x <= x < first_x + a.cutout:
                out[:, y, x] = 0
    return out


@pytest.mark.parametrize(
    "augmentation",
    [
        Augmentation(),
        Augmentation(shift=0),
        Augmentation(flip=False, shift=3),
        Augmentation(padding="reflect"),
        Augmentation(cutout=3),
        Augmentation(flip=False, shift=0, cutout=4),
        Augmentation(flip=False, shift=0),
        Augmentation(shift=11),
    ],
)
def test_every_pixel(augmentation: Augmentation, rng: np.random.Generator) -> None:
    n, h, w = 12, 9, 7
    images = rng.integers(1, 256, (n, 3, h, w), np.uint8)
    draws = augmentation.draw(n, h, w, torch.Generator().manual_seed(5))
    result = augmentation.apply(torch.from_numpy(images), draws)
    assert result.dtype == torch.uint8
    for i in range(n):
        flip = augmentation.flip and bool(draws.flips[i])
        (dy, dx), (cy, cx) = draws.shifts[i].tolist(), draws.centres[i].tolist()
        np.testing.assert_array_equal(
            result[i].numpy(), by_hand(images[i], flip, dy, dx, cy, cx, augmentation)
        )


def test_known_cases() -> None:
    image = torch.tensor([[[[1, 2, 3], [4, 5, 6], [7, 8, 9]]]], dtype=torch.uint8)

    def result(flipped: bool, moved: tuple[int, int], centre: tuple[int, int], **options: Any) -> Any:
        still = torch.zeros(1, 2, 2)
        draws = Draws(torch.tensor([flipped]), torch.tensor([moved]), torch.tensor([centre]), still)
        return Augmentation(**options).apply(image, draws)[0, 0].tolist()

    assert result(True, (0, 0), (0, 0)) == [[3, 2, 1], [6, 5, 4], [9, 8, 7]]
    assert result(False, (1, 0), (0, 0)) == [[4, 5, 6], [7, 8, 9], [0, 0, 0]]
    assert result(False, (0, -1), (0, 0)) == [[0, 1, 2], [0, 4, 5], [0, 7, 8]]
    assert result(False, (0, -1), (0, 0), shift=1, padding="reflect") == [[2, 1, 2], [5, 4, 5], [8, 7, 8]]
    assert result(False, (0, 0), (0, 0), cutout=2) == [[0, 2, 3], [4, 5, 6], [7, 8, 9]]
    assert result(False, (0, 0), (1, 1), cutout=3) == [[0] * 3] * 3


def test_a_warp_is_a_linear_map_about_the_centre() -> None:
    """Cubic interpolation nearly gives back a plane of grey values, so a pixel shows where it came from."""
    n, side = 40, 21
    places = torch.arange(side, dtype=torch.float64) - (side - 1) / 2
    y, x = torch.meshgrid(places, places, indexing="ij")
    planes = torch.stack([x, y, 0.5 * x - y]) * 8 + 127  # whole numbers
    images = planes.to(torch.uint8).expand(n, 3, side, side)
    augmentation = Augmentation(flip=False, shift=0, warp=0.2)
    draws = augmentation.draw(n, side, side, torch.Generator().manual_seed(0))
    result = augmentation.apply(images, draws).double()
    assert draws.warps.abs().max() <= 0.2
    inside = (x.abs() < 5) & (y.abs() < 5)  # what lies there comes from inside of the image, too
    for warped, matrix in zip(result, torch.eye(2) + draws.warps.double(), strict=True):
        from_x, from_y = matrix[0, 0] * x + matrix[0, 1] * y, matrix[1, 0] * x + matrix[1, 1] * y
        expected = torch.stack([from_x, from_y, 0.5 * from_x - from_y]) * 8 + 127
        assert (warped - expected).abs()[:, inside].max() <= 1.1  # a seventh of a pixel


def test_half_of_the_images_are_warped(rng: np.random.Generator) -> None:
    images = torch.from_numpy(rng.integers(0, 256, (400, 1, 8, 8), np.uint8))
    before = images.clone()
    plain, warping = (Augmentation(warp=warp, padding="reflect") for warp in (0.0, 0.2))
    some, same = (a.draw(400, 8, 8, torch.Generator().manual_seed(3)) for a in (warping, plain))
    for name in ("flips", "shifts", "centres"):
        assert torch.equal(getattr(some, name), getattr(same, name))
    warped = some.warps.flatten(1).any(1)
    assert 150 < int(warped.sum()) < 250
    changed = (warping.apply(images, some) != plain.apply(images, same)).flatten(1).any(1)
    assert torch.equal(changed, warped)
    assert torch.equal(images, before)
    still = int((~warped).nonzero()[0])
    for few in (slice(still, still + 1), slice(0)):  # nothing to warp
        assert torch.equal(
            warping.apply(images[few], some.part(few)), plain.apply(images[few], same.part(few))
        )
    share = slice(1, None, 2)
    assert torch.equal(warping.apply(images[share], some.part(share)), warping.apply(images, some)[share])


def test_any_memory_layout(rng: np.random.Generator) -> None:
    images = torch.from_numpy(rng.integers(0, 256, (5, 3, 8, 8), np.uint8))
    channels_last = images.contiguous(memory_format=torch.channels_last)
    for options in ({"shift": 4}, {"shift": 0}, {"shift": 2, "padding": "reflect", "cutout": 3, "warp": 0.1}):
        plain, other = (augment(x, torch.Generator(), **options) for x in (images, channels_last))  # type: ignore[arg-type]
        assert torch.equal(plain, other)


def test_choices_cover_what_they_should() -> None:
    draws = Augmentation(shift=2).draw(4000, 5, 6, torch.Generator().manual_seed(0))
    assert abs(draws.flips.double().mean().item() - 0.5) < 0.04
    for choices, values in [
        (draws.shifts[:, 0], range(-2, 3)),
        (draws.shifts[:, 1], range(-2, 3)),
        (draws.centres[:, 0], range(5)),
        (draws.centres[:, 1], range(6)),
    ]:
        found, counts = choices.unique(return_counts=True)
        assert found.tolist() == list(values)
        assert (counts / 4000 - 1 / len(values)).abs().max() < 0.04
    assert not torch.equal(draws.shifts[:, 0], draws.shifts[:, 1])


def test_fixed_by_the_generator_alone(rng: np.random.Generator) -> None:
    images = torch.from_numpy(rng.integers(0, 256, (20, 1, 8, 8), np.uint8))
    before = images.clone()
    generator = torch.Generator().manual_seed(1)
    state = generator.get_state()
    torch.manual_seed(7)
    outside = torch.get_rng_state()
    first, second = augment(images, generator), augment(images, generator)
    assert torch.equal(torch.get_rng_state(), outside)
    assert not torch.equal(first, second)
    assert torch.equal(augment(images, generator.set_state(state)), first)
    assert torch.equal(images, before)
    plain = Augmentation(cutout=0).draw(20, 8, 8, torch.Generator().manual_seed(1))
    square = Augmentation(cutout=3).draw(20, 8, 8, torch.Generator().manual_seed(1))
    assert torch.equal(plain.shifts, square.shifts)


def test_bad_arguments() -> None:
    images, generator = torch.zeros(2, 1, 4, 4, dtype=torch.uint8), torch.Generator()
    for match, options in [
        ("shift and cutout must be ≥ 0", {"shift": -1}),
        ("shift and cutout must be ≥ 0", {"cutout": -1}),
        ("padding must be", {"padding": "wrap"}),
        ("warp must be", {"warp": 0.5}),
        ("warp must be", {"warp": -0.1}),
        ("shift must be less than the image size", {"shift": 4, "padding": "reflect"}),
    ]:
        with pytest.raises(SimNetsError, match=match):
            augment(images, generator, **options)  # type: ignore[arg-type]
    with pytest.raises(SimNetsError, match="uint8"):
        augment(images.float(), generator)
