"""`read_image` on pictures of every kind, and on what only claims to be one."""

import contextlib
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from simnets.data import read_image
from simnets.errors import SimNetsError


def save(image: Image.Image, path: Path, **options: object) -> Path:
    image.save(path, **options)  # type: ignore[arg-type]
    return path


def refuses(match: str, path: Path, **options: object) -> None:
    with pytest.raises(SimNetsError, match=match) as caught:
        read_image(path, **options)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_a_picture_of_the_right_size_is_untouched(tmp_path: Path, rng: np.random.Generator) -> None:
    pixels = rng.integers(0, 256, (32, 32, 3), np.uint8)
    image = read_image(save(Image.fromarray(pixels), tmp_path / "a.png"))
    assert image.dtype == torch.uint8
    assert image.is_contiguous()
    np.testing.assert_array_equal(image.numpy(), pixels.transpose(2, 0, 1))


def test_scaled_to_cover_and_cropped_in_the_middle(tmp_path: Path) -> None:
    pixels = np.zeros((50, 100, 3), np.uint8)  # left quarter red, middle green, right quarter blue
    pixels[:, :25, 0] = pixels[:, 25:75, 1] = pixels[:, 75:, 2] = 255
    image = read_image(save(Image.fromarray(pixels), tmp_path / "a.png"), 10)
    assert image.shape == (3, 10, 10)
    assert image[:, 2:-2, 2:-2].flatten(1).unique(dim=1).tolist() == [[0], [255], [0]]
    tall = read_image(save(Image.fromarray(pixels.transpose(1, 0, 2)), tmp_path / "b.png"), 10)
    assert torch.equal(tall, image.transpose(1, 2))
    whole = read_image(tmp_path / "a.png", (10, 20))
    assert whole.shape == (3, 10, 20)
    assert whole[:, 5, [1, 10, 18]].tolist() == [[255, 0, 0], [0, 255, 0], [0, 0, 255]]


def test_scaling_down_averages(tmp_path: Path) -> None:
    pixels = np.zeros((320, 320), np.uint8)
    pixels[::2] = 255  # without a filter, every tenth row would be all white or all black
    image = read_image(save(Image.fromarray(pixels), tmp_path / "a.png"), 32)
    assert (image.int() - 127).abs().max() <= 4


@pytest.mark.parametrize("suffix", ["png", "jpg", "bmp", "gif", "webp", "ppm"])
def test_formats(tmp_path: Path, suffix: str) -> None:
    image = read_image(save(Image.new("RGB", (50, 40), (200, 100, 50)), tmp_path / f"a.{suffix}"), 16)
    expected = torch.tensor([200, 100, 50]).view(3, 1, 1)
    assert (image.int() - expected).abs().max() <= 3


def test_modes(tmp_path: Path) -> None:
    half = Image.new("RGBA", (40, 40), (255, 0, 0, 255))
    half.paste((255, 0, 0, 0), (0, 0, 20, 40))  # the left half is transparent, and becomes white
    image = read_image(save(half, tmp_path / "rgba.png"), 40)
    assert image[:, 20, 5].tolist() == [255, 255, 255]
    assert image[:, 20, 35].tolist() == [255, 0, 0]
    palette = Image.new("P", (8, 8), 1)
    palette.putpalette([0, 0, 0, 10, 20, 30])
    assert read_image(save(palette, tmp_path / "p.png"), 8)[:, 0, 0].tolist() == [10, 20, 30]
    assert read_image(save(palette, tmp_path / "t.png", transparency=1), 8)[:, 0, 0].tolist() == [255] * 3
    assert read_image(save(Image.new("L", (8, 8), 77), tmp_path / "l.png"), 8)[:, 0, 0].tolist() == [77] * 3
    assert read_image(save(Image.new("LA", (8, 8), (77, 0)), tmp_path / "la.png"), 8)[0, 0, 0] == 255
    assert read_image(save(Image.new("1", (8, 8), 1), tmp_path / "1.png"), 8)[0, 0, 0] == 255
    cmyk = read_image(save(Image.new("CMYK", (8, 8), (0, 0, 0, 255)), tmp_path / "c.jpg"), 8)
    assert cmyk.max() <= 3
    sixteen = Image.fromarray(np.full((8, 8), 40_000, np.uint16))
    assert read_image(save(sixteen, tmp_path / "16.png"), 8)[:, 0, 0].tolist() == [40_000 // 257] * 3


def test_one_channel_is_luma(tmp_path: Path) -> None:
    path = save(Image.new("RGB", (8, 8), (200, 100, 50)), tmp_path / "a.png")
    image = read_image(path, 8, channels=1)
    assert image.shape == (1, 8, 8)
    assert image[0, 0, 0].item() == pytest.approx(0.299 * 200 + 0.587 * 100 + 0.114 * 50, abs=1)


def test_the_camera_orientation_is_honoured(tmp_path: Path) -> None:
    pixels = np.zeros((64, 64, 3), np.uint8)
    pixels[:32] = 255  # white above, black below
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned: rotate by 90° clockwise to see it upright
    image = read_image(save(Image.fromarray(pixels), tmp_path / "a.jpg", exif=exif, quality=100), 32)
    assert image[:, :, :12].float().mean() < 10
    assert image[:, :, 20:].float().mean() > 245


def test_large_jpegs_keep_their_look(tmp_path: Path, rng: np.random.Generator) -> None:
    small = Image.fromarray(rng.integers(0, 256, (8, 8, 3), np.uint8))
    large = small.resize((1600, 1600), Image.Resampling.BICUBIC)
    image = read_image(save(large, tmp_path / "a.jpg", quality=95), 32)
    expected = np.asarray(large.resize((32, 32), Image.Resampling.BOX)).transpose(2, 0, 1)
    assert np.abs(image.numpy().astype(int) - expected).mean() < 3


def png_header(width: int, height: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = chunk(b"IDAT", zlib.compress(bytes(1000)))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + body + chunk(b"IEND", b"")


@pytest.mark.parametrize("size", [(10_000, 9_000), (12_000, 12_000), (100_000, 100_000)])
def test_decompression_bombs_are_refused_before_decoding(tmp_path: Path, size: tuple[int, int]) -> None:
    path = tmp_path / "bomb.png"
    path.write_bytes(png_header(*size))
    refuses("bomb.png: .*more than 80,000,000.*scale it down", path)


def test_what_is_no_picture_is_refused(tmp_path: Path, rng: np.random.Generator) -> None:
    path = tmp_path / "x.png"
    refuses("x.png: cannot be read as a picture .No such file", path)
    refuses("cannot be read as a picture", tmp_path)
    for content in (
        b"",
        b"hello",
        b"%!PS-Adobe-3.0 EPSF-3.0\n",
        b"\x89PNG\r\n\x1a\n",
        b"\xff\xd8\xff\xe0",
        b"BM",
    ):
        path.write_bytes(content)
        refuses("x.png: (is not a picture of a known format|cannot be read as a picture)", path)
    path.write_bytes(png_header(100, 100))  # far too few pixels
    refuses("x.png: cannot be read as a picture", path)
    for suffix in ("png", "jpg", "gif", "webp", "bmp"):
        whole = save(Image.fromarray(rng.integers(0, 256, (64, 64, 3), np.uint8)), tmp_path / f"y.{suffix}")
        content = whole.read_bytes()
        whole.write_bytes(content[: len(content) // 2])
        refuses(f"y.{suffix}: ", whole)


def test_only_the_known_formats_are_opened(tmp_path: Path) -> None:
    for kind in ("tiff", "ico", "pcx"):  # Pillow reads them; we do not let it
        path = save(Image.new("RGB", (16, 16)), tmp_path / "x.png", format=kind)
        refuses(r"x.png: is not a picture of a known format .PNG, JPEG, BMP, GIF, WEBP, PPM", path)


def test_damaged_pictures_raise_nothing_else(tmp_path: Path, rng: np.random.Generator) -> None:
    for suffix in ("png", "jpg", "gif", "webp", "bmp", "ppm"):
        path = save(Image.fromarray(rng.integers(0, 256, (16, 16, 3), np.uint8)), tmp_path / f"z.{suffix}")
        content = np.frombuffer(path.read_bytes(), np.uint8)
        for _ in range(60):
            damaged = content.copy()
            where = rng.integers(0, min(len(damaged), 200), 3)
            damaged[where] = rng.integers(0, 256, 3)
            path.write_bytes(damaged.tobytes())
            with contextlib.suppress(SimNetsError):
                assert read_image(path, 8).shape == (3, 8, 8)


def test_bad_arguments(tmp_path: Path) -> None:
    for options in ({"image_size": 0}, {"image_size": (8, -1)}, {"channels": 4}):
        refuses("image_size must be ≥ 1 and channels 1 or 3", tmp_path / "a.png", **options)
