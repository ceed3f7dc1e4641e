"""Small files in the official layouts, written byte by byte and independently of the readers."""

import struct
from pathlib import Path

import numpy as np


def cifar_bytes(images: np.ndarray, *labels: list[int]) -> bytes:
    """Records of images (N, 32, 32, 3): label bytes, then the red, the green and the blue plane."""
    out = bytearray()
    for i, image in enumerate(images):
        out += struct.pack(f"{len(labels)}B", *(column[i] for column in labels))
        for channel in range(3):
            for row in range(32):
                out += bytes(image[row, :, channel].tolist())
    return bytes(out)


def write_cifar10(folder: Path, rng: np.random.Generator, count: int = 2) -> dict[str, np.ndarray]:
    """Five train batches and a test batch of `count` images; returns the (N, 32, 32, 3) images by split."""
    folder.mkdir(parents=True, exist_ok=True)
    images = rng.integers(0, 256, (6 * count, 32, 32, 3), np.uint8)
    for b in range(6):
        name = f"data_batch_{b + 1}.bin" if b < 5 else "test_batch.bin"
        part = images[b * count : (b + 1) * count]
        (folder / name).write_bytes(cifar_bytes(part, [(b * count + i) % 10 for i in range(count)]))
    (folder / "batches.meta.txt").write_text("\n".join(f"name{i}" for i in range(10)) + "\n\n")
    return {"train": images[: 5 * count], "test": images[5 * count :]}


def write_cifar100(folder: Path, rng: np.random.Generator, count: int = 3) -> dict[str, np.ndarray]:
    folder.mkdir(parents=True, exist_ok=True)
    images = {}
    for split in ("train", "test"):
        images[split] = rng.integers(0, 256, (count, 32, 32, 3), np.uint8)
        coarse, fine = [19] * count, [99 - i for i in range(count)]
        (folder / f"{split}.bin").write_bytes(cifar_bytes(images[split], coarse, fine))
    (folder / "fine_label_names.txt").write_text("\n".join(f"fine{i}" for i in range(100)))
    (folder / "coarse_label_names.txt").write_text("\n".join(f"coarse{i}" for i in range(20)))
    return images
