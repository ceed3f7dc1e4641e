"""What is known of the official data sets: their files, counts, checksums and where they come from."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from simnets.data.arrays import Arrays
from simnets.data.cifar import read_cifar10, read_cifar100, read_names
from simnets.data.dataset import ImageDataset
from simnets.data.svhn import read_svhn


@dataclass(frozen=True)
class OfficialFile:
    """A data file of the layout, and what the official one holds."""

    name: str
    images: int
    sha256: str


@dataclass(frozen=True)
class Download:
    """A file on the official server; `size` in bytes, also the most that is ever accepted."""

    url: str
    size: int
    sha256: str

    @property
    def filename(self) -> str:
        return self.url.rsplit("/", 1)[-1]


@dataclass(frozen=True)
class OfficialSet:
    """A data set in its official layout: `folder`, under the data root, holds all of its files."""

    name: str
    folder: str
    train: tuple[OfficialFile, ...]
    test: tuple[OfficialFile, ...]
    read_file: Callable[[Path], Arrays]
    read_classes: Callable[[Path], tuple[str, ...]]
    downloads: tuple[Download, ...]
    unpacked_size: int  # bytes that the archive needs beside itself; 0 when the downloads are the files

    @property
    def files(self) -> tuple[OfficialFile, ...]:
        return self.train + self.test

    def found_in(self, folder: Path) -> bool:
        """Whether `folder` has this layout; one file is enough, the reader says which are missing."""
        return any((folder / file.name).is_file() for file in self.files)

    def read(self, folder: Path, split: str) -> ImageDataset:
        classes = self.read_classes(folder)
        files = self.train if split == "train" else self.test
        parts = [self.read_file(folder / file.name) for file in files]
        images = np.concatenate([images for images, _ in parts])
        labels = np.concatenate([labels for _, labels in parts])
        return ImageDataset(torch.from_numpy(images), torch.from_numpy(labels), classes, self.name)


_SVHN_TRAIN = "435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8"
_SVHN_TEST = "cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b"

CIFAR10 = OfficialSet(
    name="cifar10",
    folder="cifar-10-batches-bin",
    train=(
        OfficialFile(
            "data_batch_1.bin", 10_000, "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5"
        ),
        OfficialFile(
            "data_batch_2.bin", 10_000, "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed"
        ),
        OfficialFile(
            "data_batch_3.bin", 10_000, "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67"
        ),
        OfficialFile(
            "data_batch_4.bin", 10_000, "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48"
        ),
        OfficialFile(
            "data_batch_5.bin", 10_000, "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add"
        ),
    ),
    test=(
        OfficialFile(
            "test_batch.bin", 10_000, "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b"
        ),
    ),
    read_file=read_cifar10,
    read_classes=lambda folder: read_names(folder / "batches.meta.txt", 10),
    downloads=(
        Download(
            "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
            170_052_171,
            "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
        ),
    ),
    unpacked_size=185_000_000,
)

CIFAR100 = OfficialSet(
    name="cifar100",
    folder="cifar-100-binary",
    train=(
        OfficialFile("train.bin", 50_000, "f31298fc616915fa142368359df1c4ca2ae984d6915ca468b998a5ec6aeebf29"),
    ),
    test=(
        OfficialFile("test.bin", 10_000, "d8b1e6b7b3bee4020055f0699b111f60b1af1e262aeb93a0b659061746f8224a"),
    ),
    read_file=read_cifar100,
    read_classes=lambda folder: read_names(folder / "fine_label_names.txt", 100),
    downloads=(
        Download(
            "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
            168_513_733,
            "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
        ),
    ),
    unpacked_size=185_000_000,
)

SVHN = OfficialSet(
    name="svhn",
    folder="svhn",
    train=(OfficialFile("train_32x32.mat", 73_257, _SVHN_TRAIN),),
    test=(OfficialFile("test_32x32.mat", 26_032, _SVHN_TEST),),
    read_file=read_svhn,
    read_classes=lambda folder: tuple("0123456789"),
    downloads=(
        Download("http://ufldl.stanford.edu/housenumbers/train_32x32.mat", 182_040_794, _SVHN_TRAIN),
        Download("http://ufldl.stanford.edu/housenumbers/test_32x32.mat", 64_275_384, _SVHN_TEST),
    ),
    unpacked_size=0,
)

OFFICIAL = {official.name: official for official in (CIFAR10, CIFAR100, SVHN)}


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
