"""The readers against files that the tests write themselves, right ones and broken ones."""

import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from layouts import cifar_bytes, write_cifar10, write_cifar100
from PIL import Image
from scipy.io import savemat

from simnets.data import data_root, load_dataset
from simnets.errors import SimNetsError


def nchw(images: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(images.transpose(0, 3, 1, 2).copy())


def refuses(match: str, *args: object, **kwargs: object) -> None:
    with pytest.raises(SimNetsError, match=match) as caught:
        load_dataset(*args, **kwargs)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


# CIFAR


def test_cifar10(tmp_path: Path, rng: np.random.Generator) -> None:
    images = write_cifar10(tmp_path / "cifar-10-batches-bin", rng, count=3)
    train = load_dataset("cifar10", "train", tmp_path)
    test = load_dataset("cifar10", "test", root=tmp_path)
    assert torch.equal(train.images, nchw(images["train"]))
    assert torch.equal(test.images, nchw(images["test"]))
    assert train.labels.tolist() == [i % 10 for i in range(15)]
    assert test.labels.tolist() == [5, 6, 7]
    assert train.classes == tuple(f"name{i}" for i in range(10))
    assert train.name == "cifar10"
    for path in (tmp_path / "cifar-10-batches-bin", tmp_path):  # the layout is known by its files
        assert torch.equal(load_dataset(path, "test").images, test.images)


def test_cifar100_uses_fine_labels(tmp_path: Path, rng: np.random.Generator) -> None:
    images = write_cifar100(tmp_path, rng)
    train = load_dataset(str(tmp_path))
    assert torch.equal(train.images, nchw(images["train"]))
    assert train.labels.tolist() == [99, 98, 97]
    assert train.classes[99] == "fine99"
    assert train.name == "cifar100"


def test_broken_cifar(tmp_path: Path, rng: np.random.Generator) -> None:
    write_cifar10(tmp_path, rng)
    batch = tmp_path / "data_batch_3.bin"
    whole = batch.read_bytes()
    batch.write_bytes(whole[:-1])
    refuses(r"data_batch_3.bin: 6,145 bytes are not a whole number of records of 3073", tmp_path)
    batch.write_bytes(b"")
    refuses("data_batch_3.bin: 0 bytes", tmp_path)
    batch.write_bytes(whole[:3073] + b"\x0a" + whole[3074:])
    refuses("data_batch_3.bin: label 10 of image 1 is out of range 0…9", tmp_path)
    batch.unlink()
    refuses("data_batch_3.bin: cannot be read .No such file", tmp_path)
    batch.write_bytes(whole)
    meta = tmp_path / "batches.meta.txt"
    meta.write_text("airplane\nbird\n")
    refuses("batches.meta.txt: expected 10 different class names.*found 2", tmp_path)
    meta.write_bytes(b"\xff\xfe\x00")
    refuses("batches.meta.txt: is not a text file", tmp_path)
    meta.unlink()
    refuses("batches.meta.txt: cannot be read", tmp_path)


def test_broken_cifar100(tmp_path: Path, rng: np.random.Generator) -> None:
    write_cifar100(tmp_path, rng)
    image = rng.integers(0, 256, (1, 32, 32, 3), np.uint8)
    (tmp_path / "train.bin").write_bytes(cifar_bytes(image, [0], [100]))
    refuses("train.bin: label 100 of image 0 is out of range 0…99", tmp_path)


# SVHN


def write_svhn(folder: Path, images: np.ndarray, labels: list[int]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for split in ("train", "test"):
        content = {"X": images.transpose(1, 2, 3, 0), "y": np.array(labels, np.uint8)[:, None]}
        savemat(folder / f"{split}_32x32.mat", content, do_compression=split == "test")


def test_svhn(tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    images = rng.integers(0, 256, (4, 32, 32, 3), np.uint8)
    write_svhn(tmp_path / "svhn", images, [1, 10, 9, 10])
    monkeypatch.setenv("SIMNETS_DATA", str(tmp_path))
    for split in ("train", "test"):
        dataset = load_dataset("svhn", split)
        assert torch.equal(dataset.images, nchw(images))
        assert dataset.labels.tolist() == [1, 0, 9, 0]  # 10 means the digit 0
        assert dataset.classes == tuple("0123456789")


def test_broken_svhn(tmp_path: Path, rng: np.random.Generator) -> None:
    images = rng.integers(0, 256, (3, 32, 32, 3), np.uint8)
    write_svhn(tmp_path, images, [1, 2, 3])
    path = tmp_path / "train_32x32.mat"
    whole = path.read_bytes()
    for length in (0, 1, 100, 127, 128, 129, 200, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        refuses("train_32x32.mat: ", tmp_path)
    path.write_bytes(b"version https://example.org\n" * 100)
    refuses("train_32x32.mat: is not a readable MATLAB 5 file", tmp_path)
    x = images.transpose(1, 2, 3, 0)
    for content, match in [
        ({"X": x}, "X and y"),
        ({"X": x.astype(float), "y": [[1, 2, 3]]}, "X must be uint8"),
        ({"X": x[:16], "y": [[1, 2, 3]]}, r"\(16, 32, 3, 3\)"),
        ({"X": x, "y": [[1, 2]]}, "y must be 3 integers"),
        ({"X": x, "y": [[1.0, 2.0, 3.5]]}, "y must be 3 integers"),
        ({"X": x, "y": [[1, 2, 0]]}, "label 0 of image 2 is out of range 1…10"),
        ({"X": x, "y": [[1, 11, 2]]}, "label 11 of image 1"),
    ]:
        savemat(path, content)
        refuses(f"train_32x32.mat: .*{match}", tmp_path)
    path.unlink()
    refuses("train_32x32.mat: cannot be read", tmp_path)


# .npz


@pytest.mark.parametrize("layout", ["NHW", "NHWC", "NCHW"])
def test_npz_with_splits(tmp_path: Path, rng: np.random.Generator, layout: str) -> None:
    shape = {"NHW": (10, 8), "NHWC": (10, 8, 3), "NCHW": (3, 10, 8)}[layout]
    train, test = rng.integers(0, 256, (6, *shape), np.uint8), rng.integers(0, 256, (4, *shape), np.uint8)
    path = tmp_path / "mine.npz"
    np.savez(path, x_train=train, y_train=[0, 1, 2, 0, 1, 2], x_test=test, y_test=[[0], [1], [2], [4]])
    for split, array, labels in [("train", train, [0, 1, 2, 0, 1, 2]), ("test", test, [0, 1, 2, 4])]:
        dataset = load_dataset(path, split)
        assert dataset.shape == ((1 if layout == "NHW" else 3), 10, 8)
        for i, image in enumerate(array):
            for c in range(dataset.shape[0]):
                plane = {"NHW": image, "NHWC": image[..., c % image.shape[-1]], "NCHW": image[c % len(image)]}
                assert np.array_equal(dataset.images[i, c].numpy(), plane[layout])
        assert dataset.labels.tolist() == labels
        assert dataset.classes == ("0", "1", "2", "3", "4")
        assert dataset.name == "mine"


def test_npz_without_splits_holds_out_a_fifth(tmp_path: Path, rng: np.random.Generator) -> None:
    images, labels = rng.integers(0, 256, (50, 9, 9), np.uint8), np.arange(50) % 5
    np.savez(tmp_path / "all.npz", images=images, labels=labels, classes=list("abcde"))
    train, test = load_dataset(tmp_path / "all.npz"), load_dataset(tmp_path / "all.npz", "test")
    assert torch.bincount(test.labels).tolist() == [2] * 5
    assert train.classes == tuple("abcde")
    found = sorted(image.numpy().tobytes() for image in (*train.images, *test.images))
    assert found == sorted(image.tobytes() for image in images)


def test_broken_npz(tmp_path: Path, rng: np.random.Generator) -> None:
    path = tmp_path / "x.npz"
    good = rng.integers(0, 256, (4, 8, 8), np.uint8)
    for content, match in [
        ({"images": good}, "found images"),
        ({"a": good}, "none of them"),
        ({"x_train": good, "y_train": [0, 1, 0, 1]}, "expected arrays x_train, y_train, x_test"),
        ({"images": good / 255, "labels": [0, 1, 0, 1]}, "must be uint8.*float64"),
        ({"images": good[0], "labels": [0, 1, 0, 1]}, "must be uint8"),
        ({"images": good[..., None].repeat(4, 3), "labels": [0, 1, 0, 1]}, "neither"),
        ({"images": good[:, :3, :, None], "labels": [0, 1, 0, 1]}, "both"),
        ({"images": good, "labels": [0, 1, 0]}, "labels must be 4 integers"),
        ({"images": good, "labels": [0.0, 1.0, 0.0, 1.0]}, "labels must be 4 integers"),
        ({"images": good, "labels": [0, 1, 0, -1]}, "label -1 of image 3"),
        ({"images": good, "labels": [0, 1, 0, 10**9]}, "label 1000000000 of image 3"),
        ({"images": good, "labels": [0, 1, 0, 2], "classes": ["a", "b"]}, "label 2 of image 3 .* 0…1"),
        ({"images": np.array([None, 1], object), "labels": [0, 1]}, "plain arrays"),
        (
            {"x_train": good, "y_train": [0] * 4, "x_test": good[:, :4], "y_test": [0] * 4},
            r"one shape; got \(1, 8, 8\) and \(1, 4, 8\)",
        ),
    ]:
        np.savez(path, **content)  # type: ignore[arg-type]
        refuses(f"x.npz: .*{match}", path)
    np.savez(path, images=good, labels=[0, 1, 0, 1])
    whole = path.read_bytes()
    for length in (0, 10, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        refuses("x.npz: is not a readable .npz", path)
    damaged = bytearray(whole)
    damaged[200] ^= 255  # inside the pixels: the archive's own checksum notices
    path.write_bytes(damaged)
    refuses("x.npz: is not a readable .npz", path)
    with path.open("wb") as file:
        np.save(file, good)
    refuses("x.npz: is one array", path)


def test_npz_never_unpickles(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.mkdir, (str(tmp_path / "exploded"),)

    (tmp_path / "raw.npz").write_bytes(pickle.dumps(Bomb()))
    refuses("raw.npz: is not a readable", tmp_path / "raw.npz")
    np.savez(tmp_path / "object.npz", images=np.array([Bomb()], object), labels=[0])
    refuses("object.npz: is not a readable", tmp_path / "object.npz")
    assert not (tmp_path / "exploded").exists()


# folders of pictures


def paint(path: Path, colour: tuple[int, int, int], size: tuple[int, int] = (40, 30)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)


def test_folder_with_splits(tmp_path: Path) -> None:
    for split, count in (("train", 3), ("test", 1)):
        for i in range(count):
            paint(tmp_path / split / "zebra" / f"{i}.png", (255, 10 * i, 0))
            paint(tmp_path / split / "ant" / f"{i}.PNG", (0, 10 * i, 255), size=(7, 90))
    (tmp_path / "train" / "ant" / "notes.txt").write_text("not a picture")
    (tmp_path / "train" / "ant" / ".hidden.png").write_text("not a picture")
    (tmp_path / "train" / ".cache").mkdir()
    train, test = load_dataset(tmp_path), load_dataset(tmp_path, "test", image_size=16)
    assert train.classes == test.classes == ("ant", "zebra")
    assert train.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert train.shape == (3, 32, 32)
    assert test.shape == (3, 16, 16)
    assert train.images[:, :, 5, 5].tolist() == [
        *([0, 10 * i, 255] for i in range(3)),
        *([255, 10 * i, 0] for i in range(3)),
    ]
    assert train.name == tmp_path.name


def test_folder_without_splits(tmp_path: Path) -> None:
    for i in range(10):
        paint(tmp_path / "train" / f"{i}.png", (i, 0, 0))  # a class may well be called train
        paint(tmp_path / "bus" / f"{i}.png", (i, 1, 0))
    train, test = load_dataset(tmp_path), load_dataset(tmp_path, "test")
    assert train.classes == ("bus", "train")
    assert torch.bincount(train.labels).tolist() == [8, 8]
    assert torch.bincount(test.labels).tolist() == [2, 2]
    seen = torch.cat([train.images, test.images])[:, :2, 0, 0].tolist()
    assert sorted(seen) == sorted([i, g] for i in range(10) for g in (0, 1))
    assert torch.equal(load_dataset(tmp_path, "test").images, test.images)


def test_broken_folders(tmp_path: Path) -> None:
    refuses("at least 2 classes", tmp_path)
    paint(tmp_path / "a" / "1.png", (0, 0, 0))
    refuses("at least 2 classes", tmp_path)
    (tmp_path / "b").mkdir()
    refuses("b: holds no pictures", tmp_path)
    paint(tmp_path / "b" / "1.png", (0, 0, 0))
    assert len(load_dataset(tmp_path)) == 1
    (tmp_path / "b" / "2.jpg").write_bytes(b"GIF89a nonsense")
    (tmp_path / "b" / "3.jpg").write_bytes(b"")
    refuses("b/[23].jpg: is not a picture|b/[23].jpg: cannot be read as a picture", tmp_path)
    both = tmp_path / "both"
    for name in ("train/a", "train/b"):
        paint(both / name / "1.png", (0, 0, 0))
    refuses("has train/ but no test/", both)
    paint(both / "test" / "c" / "1.png", (0, 0, 0))
    refuses("test/ has classes that train/ has not: c", both)


# names and paths


def test_names_and_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refuses("no such data set or path; the names are cifar10, cifar100, svhn, digits", tmp_path / "nothing")
    refuses("no such data set", "imagenet", root=tmp_path)
    refuses(
        r"cifar10: there is no folder .*cifar-10-batches-bin; run `simnets data fetch cifar10`",
        "cifar10",
        root=tmp_path,
    )
    refuses('split must be "train" or "test"; got \'dev\'', "digits", "dev")
    refuses("image_size must be ≥ 1, and only for a folder", "digits", image_size=32)
    refuses("image_size must be ≥ 1", tmp_path, image_size=0)
    (tmp_path / "file.txt").write_text("")
    refuses("file.txt: is neither a folder nor an .npz file", tmp_path / "file.txt")
    monkeypatch.setenv("SIMNETS_DATA", str(tmp_path / "env"))
    assert data_root() == tmp_path / "env"
    assert data_root(tmp_path / "given") == tmp_path / "given"
    monkeypatch.delenv("SIMNETS_DATA")
    assert data_root().name == "simnets"


def test_a_folder_of_several_data_sets_is_ambiguous(tmp_path: Path, rng: np.random.Generator) -> None:
    write_cifar10(tmp_path / "cifar-10-batches-bin", rng)
    write_cifar100(tmp_path / "cifar-100-binary", rng)
    refuses("holds several data sets; give one: .*cifar-10-batches-bin, .*cifar-100-binary", tmp_path)
