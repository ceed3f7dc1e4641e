"""ImageDataset, stratified splits and pixel statistics."""

import numpy as np
import pytest
import torch

from simnets.data import ImageDataset, load_dataset, pixel_statistics, split_validation
from simnets.data.dataset import stratified_split
from simnets.errors import SimNetsError


def make(labels: list[int], classes: int = 3) -> ImageDataset:
    n = len(labels)
    images = torch.arange(n, dtype=torch.uint8).view(n, 1, 1, 1).expand(n, 1, 2, 2).contiguous()
    return ImageDataset(images, torch.tensor(labels), tuple(f"c{i}" for i in range(classes)), "toy")


def test_subset_keeps_order_and_classes() -> None:
    part = make([0, 1, 2, 1]).subset(torch.tensor([3, 0]))
    assert part.images[:, 0, 0, 0].tolist() == [3, 0]
    assert part.labels.tolist() == [1, 0]
    assert part.classes == ("c0", "c1", "c2")
    assert len(part) == 2
    assert part.shape == (1, 2, 2)
    assert repr(part) == "ImageDataset('toy', 2 images 1×2×2, 3 classes)"


@pytest.mark.parametrize(
    ("images", "labels", "says"),
    [
        (torch.zeros(2, 1, 4, 4), torch.zeros(2, dtype=torch.int64), "uint8"),
        (torch.zeros(2, 4, 4, dtype=torch.uint8), torch.zeros(2, dtype=torch.int64), r"\(2, 4, 4\)"),
        (torch.zeros(0, 1, 4, 4, dtype=torch.uint8), torch.zeros(0, dtype=torch.int64), "none of them 0"),
        (torch.zeros(2, 1, 4, 4, dtype=torch.uint8), torch.zeros(3, dtype=torch.int64), r"int64 \(2,\)"),
        (torch.zeros(2, 1, 4, 4, dtype=torch.uint8), torch.zeros(2), "float32"),
        (torch.zeros(2, 1, 4, 4, dtype=torch.uint8), torch.tensor([0, 2]), "0…2"),
        (torch.zeros(2, 1, 4, 4, dtype=torch.uint8), torch.tensor([-1, 0]), "-1…0"),
    ],
)
def test_bad_arrays_are_refused(images: torch.Tensor, labels: torch.Tensor, says: str) -> None:
    with pytest.raises(SimNetsError, match=says):
        ImageDataset(images, labels, ("a", "b"), "toy")


def test_validation_split_is_exact_stratified_and_seeded() -> None:
    labels = [0] * 50 + [1] * 30 + [2] * 20
    dataset = make(labels)
    train, validation = split_validation(dataset, 10, seed=0)
    assert torch.bincount(validation.labels).tolist() == [5, 3, 2]
    both = torch.cat([train.images, validation.images])[:, 0, 0, 0]
    assert sorted(both.tolist()) == list(range(100))
    again = split_validation(dataset, 10, seed=0)[1]
    other = split_validation(dataset, 10, seed=1)[1]
    assert torch.equal(again.images, validation.images)
    assert not torch.equal(other.images, validation.images)


@pytest.mark.parametrize("size", [1, 7, 33, 98, 99])
def test_split_has_the_asked_size_and_fair_shares(size: int) -> None:
    labels = torch.tensor([0] * 61 + [1] * 27 + [3] * 12)  # class 2 is empty
    rest, chosen = stratified_split(labels, size, seed=3)
    assert len(chosen) == size
    assert sorted(rest.tolist() + chosen.tolist()) == list(range(100))
    counts = torch.bincount(labels[chosen], minlength=4)
    for c, n in enumerate([61, 27, 0, 12]):
        assert abs(counts[c].item() - size * n / 100) < 1
    if size <= 97:
        assert (torch.bincount(labels[rest], minlength=4)[[0, 1, 3]] > 0).all()


def test_what_is_left_over_goes_to_the_largest_remainder() -> None:
    labels = torch.tensor([0] * 60 + [1] * 27 + [2] * 13)  # shares 6, 2.7 and 1.3 of 10
    _, chosen = stratified_split(labels, 10, seed=0)
    assert torch.bincount(labels[chosen]).tolist() == [6, 3, 1]


def test_the_only_image_of_a_class_stays_for_training() -> None:
    rest, _ = stratified_split(torch.tensor([0, 0, 0, 0, 1]), 1, seed=0)
    assert 4 in rest.tolist()
    for seed in range(5):  # the share of class 1 has the larger remainder, but it is its last image
        rest, _ = stratified_split(torch.tensor([0] * 9 + [1]), 7, seed=seed)
        assert 9 in rest.tolist()


@pytest.mark.parametrize("size", [0, -1, 4, 10_000])
def test_impossible_sizes_are_refused(size: int) -> None:
    with pytest.raises(SimNetsError, match=str(size)):
        split_validation(make([0, 1, 2, 1]), size)


def test_statistics_agree_with_numpy(rng: np.random.Generator) -> None:
    array = rng.integers(0, 256, (7, 3, 5, 6), np.uint8)
    mean, std = pixel_statistics(torch.from_numpy(array))
    scaled = array.astype(np.float64) / 255
    np.testing.assert_allclose(mean.numpy(), scaled.mean((0, 2, 3)), rtol=1e-6)
    np.testing.assert_allclose(std.numpy(), scaled.std((0, 2, 3)), rtol=1e-6)


def test_a_constant_channel_has_deviation_one() -> None:
    mean, std = pixel_statistics(torch.full((2, 1, 3, 3), 51, dtype=torch.uint8))
    assert mean.item() == pytest.approx(0.2)
    assert std.item() == 1.0


def test_digits_are_those_of_scikit_learn() -> None:
    from sklearn.datasets import load_digits

    train, test = load_dataset("digits"), load_dataset("digits", "test")
    assert (len(train), len(test)) == (1438, 359)
    assert train.shape == (1, 8, 8)
    assert train.classes == tuple("0123456789")
    images = torch.cat([train.images, test.images])[:, 0].double() * 16 / 255
    labels = torch.cat([train.labels, test.labels])
    original = load_digits()

    def rows(images: np.ndarray, labels: np.ndarray) -> list[tuple[int, ...]]:
        flat = np.rint(images).astype(int).reshape(len(images), -1)
        return sorted(tuple(row) for row in np.column_stack([flat, labels]).tolist())

    assert rows(images.numpy(), labels.numpy()) == rows(original.images, original.target)
    shares = torch.bincount(test.labels) / torch.bincount(labels)
    assert ((shares - 0.2).abs() < 0.01).all()
