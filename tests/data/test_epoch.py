"""Batches: every image once, the same wherever one starts, and shared out without changing them."""

import pytest
import torch

from simnets.data import Augmentation, ImageDataset, batches, count_batches
from simnets.errors import SimNetsError


@pytest.fixture
def dataset() -> ImageDataset:
    images = torch.randint(256, (23, 3, 8, 8), generator=torch.Generator().manual_seed(0))
    images[:, 0, 0, 0] = torch.arange(23)  # each image carries its number
    return ImageDataset(images.to(torch.uint8), torch.arange(23) % 4, tuple("abcd"), "toy")


def numbers(found: list[tuple[torch.Tensor, torch.Tensor]]) -> list[int]:
    return torch.cat([images[:, 0, 0, 0] for images, _ in found]).tolist()


def same(a: list[tuple[torch.Tensor, torch.Tensor]], b: list[tuple[torch.Tensor, torch.Tensor]]) -> bool:
    pairs = zip(a, b, strict=True)
    return all(torch.equal(x[0], y[0]) and torch.equal(x[1], y[1]) for x, y in pairs)


def test_every_image_once(dataset: ImageDataset) -> None:
    found = list(batches(dataset, 5))
    assert [len(images) for images, _ in found] == [5, 5, 5, 5, 3]
    assert sorted(numbers(found)) == list(range(23))
    assert numbers(found) != list(range(23))
    for images, labels in found:
        assert torch.equal(labels, images[:, 0, 0, 0] % 4)
    assert numbers(list(batches(dataset, 5, shuffle=False))) == list(range(23))
    assert [len(images) for images, _ in batches(dataset, 5, drop_last=True)] == [5, 5, 5, 5]
    assert (count_batches(23, 5), count_batches(23, 5, drop_last=True), count_batches(20, 5)) == (5, 4, 4)


def test_order_is_a_function_of_seed_and_epoch(dataset: ImageDataset) -> None:
    orders = {
        (seed, epoch): tuple(numbers(list(batches(dataset, 5, seed=seed, epoch=epoch))))
        for seed in range(3)
        for epoch in range(3)
    }
    assert len(set(orders.values())) == 9
    torch.manual_seed(99)  # the global generator has no part in it
    assert tuple(numbers(list(batches(dataset, 5, seed=1, epoch=2)))) == orders[1, 2]


def test_start_anywhere(dataset: ImageDataset) -> None:
    options = {"seed": 4, "epoch": 7, "augmentation": Augmentation(shift=2, cutout=3)}
    whole = list(batches(dataset, 5, **options))
    for start in range(7):
        assert same(list(batches(dataset, 5, start=start, **options)), whole[start:])


@pytest.mark.parametrize("world_size", [2, 3, 6])
def test_shares_are_the_whole(dataset: ImageDataset, world_size: int) -> None:
    options = {"seed": 4, "epoch": 1, "augmentation": Augmentation(shift=2, cutout=3)}
    whole = list(batches(dataset, 6, **options))
    shares = [list(batches(dataset, 6, rank=r, world_size=world_size, **options)) for r in range(world_size)]
    for index, (images, labels) in enumerate(whole):
        for rank in range(world_size):
            share_images, share_labels = shares[rank][index]
            assert torch.equal(share_images, images[rank::world_size])
            assert torch.equal(share_labels, labels[rank::world_size])


def test_augmentation_differs_between_batches_and_epochs() -> None:
    same_image = torch.randint(256, (1, 1, 8, 8)).to(torch.uint8).expand(40, 1, 8, 8).contiguous()
    dataset = ImageDataset(same_image, torch.zeros(40, dtype=torch.int64), ("only",), "toy")
    found = [
        images.flatten().tolist()
        for epoch in range(2)
        for images, _ in batches(dataset, 20, epoch=epoch, augmentation=Augmentation())
    ]
    assert len({tuple(pixels) for pixels in found}) == 4


def test_bad_arguments_are_refused_at_once(dataset: ImageDataset) -> None:
    for options in [
        {"batch_size": 0},
        {"batch_size": 5, "start": -1},
        {"batch_size": 4, "rank": 2, "world_size": 2},
        {"batch_size": 5, "rank": 0, "world_size": 2},
    ]:
        with pytest.raises(SimNetsError, match="batch_size"):
            batches(dataset, **options)  # type: ignore[arg-type]
