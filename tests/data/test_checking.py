"""`check` finds what is wrong and says it in one line a file."""

import dataclasses
import hashlib
from pathlib import Path

import numpy as np
import pytest
from layouts import write_cifar10
from PIL import Image
from scipy.io import savemat

from simnets.data import check
from simnets.data.official import CIFAR10, OFFICIAL, SVHN, OfficialFile
from simnets.errors import SimNetsError


@pytest.fixture
def folder(tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A CIFAR-10 folder of 2 images a batch, taken for the official one."""
    folder = tmp_path / "cifar-10-batches-bin"
    write_cifar10(folder, rng)

    def pinned(files: tuple[OfficialFile, ...]) -> tuple[OfficialFile, ...]:
        return tuple(
            OfficialFile(f.name, 2, hashlib.sha256((folder / f.name).read_bytes()).hexdigest()) for f in files
        )

    tiny = dataclasses.replace(CIFAR10, train=pinned(CIFAR10.train), test=pinned(CIFAR10.test))
    monkeypatch.setitem(OFFICIAL, "cifar10", tiny)
    return folder


def test_official_files_are_ok(folder: Path) -> None:
    report = check("cifar10", root=folder.parent)
    assert report.ok
    assert len(report.lines) == 7
    assert all(line.startswith("ok ") for line in report.lines)
    assert check(folder).lines == report.lines


def test_each_fault_is_found_in_its_file(folder: Path) -> None:
    def change(name: str, where: int, value: int) -> None:
        content = bytearray((folder / name).read_bytes())
        content[where] = value
        (folder / name).write_bytes(content)

    change("data_batch_1.bin", 500, (folder / "data_batch_1.bin").read_bytes()[500] ^ 1)  # a pixel
    change("data_batch_2.bin", 3073, 77)  # a label
    whole = (folder / "data_batch_3.bin").read_bytes()
    (folder / "data_batch_3.bin").write_bytes(whole[:-10])
    (folder / "data_batch_4.bin").write_bytes(whole[:3073])
    (folder / "test_batch.bin").unlink()
    (folder / "batches.meta.txt").unlink()
    report = check(folder)
    assert not report.ok
    for line, (level, name, words) in zip(
        report.lines,
        [
            ("warning", "data_batch_1.bin", "2 images, well formed, but not the official file"),
            ("error", "data_batch_2.bin", "label 77 of image 1 is out of range 0…9"),
            ("error", "data_batch_3.bin", "truncated"),
            ("error", "data_batch_4.bin", "holds 1 images, the official file 2"),
            ("ok", "data_batch_5.bin", "the official file"),
            ("error", "test_batch.bin", "No such file"),
            ("error", "batches.meta.txt", "No such file"),
        ],
        strict=True,
    ):
        assert line.startswith(level)
        assert f"{name}: " in line
        assert words in line


def test_a_remade_file_is_only_a_warning(folder: Path) -> None:
    content = bytearray((folder / "test_batch.bin").read_bytes())
    content[1] ^= 1
    (folder / "test_batch.bin").write_bytes(content)
    report = check(folder)
    assert report.ok
    assert sum(finding.level == "warning" for finding in report.findings) == 1


def test_svhn(tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    images = rng.integers(0, 256, (32, 32, 3, 4), np.uint8)
    savemat(tmp_path / "train_32x32.mat", {"X": images, "y": [[1, 2, 3, 10]]})
    (tmp_path / "test_32x32.mat").write_bytes((tmp_path / "train_32x32.mat").read_bytes()[:5000])
    tiny = dataclasses.replace(SVHN, train=(OfficialFile("train_32x32.mat", 4, "0" * 64),))
    monkeypatch.setitem(OFFICIAL, "svhn", tiny)
    report = check(tmp_path)
    assert [finding.level for finding in report.findings] == ["warning", "error", "ok"]
    assert "4 images, well formed" in report.lines[0]
    assert "truncated" in report.lines[1]


def test_folder_of_pictures_names_every_bad_one(tmp_path: Path) -> None:
    for split, classes in (("train", "abc"), ("test", "ab")):
        for name in classes:
            (tmp_path / split / name).mkdir(parents=True)
            for i in range(2):
                Image.new("RGB", (9, 9)).save(tmp_path / split / name / f"{i}.png")
    report = check(tmp_path)
    assert report.ok
    assert report.lines == [
        "ok      train: 6 pictures of 3 of 3 classes",
        "ok      test: 4 pictures of 2 of 3 classes",
        "warning test: no picture of c",
    ]
    (tmp_path / "train" / "a" / "bad.png").write_text("no")
    (tmp_path / "test" / "b" / "worse.jpg").write_text("no")
    report = check(tmp_path)
    assert not report.ok
    errors = [finding.message for finding in report.findings if finding.level == "error"]
    assert [message.split(":")[0] for message in errors] == [
        str(tmp_path / "train" / "a" / "bad.png"),
        str(tmp_path / "test" / "b" / "worse.jpg"),
    ]


def test_other_sources(tmp_path: Path) -> None:
    assert check("digits").ok
    np.savez(tmp_path / "x.npz", images=np.zeros((4, 8, 8)), labels=[0, 1, 0, 1])
    report = check(tmp_path / "x.npz")
    assert not report.ok
    assert "must be uint8" in report.lines[0]
    (tmp_path / "empty").mkdir()
    assert not check(tmp_path / "empty").ok
    with pytest.raises(SimNetsError, match="no such data set or path"):
        check(tmp_path / "nothing")
