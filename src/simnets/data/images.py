"""One picture file of any size as a tensor of the size that a model takes."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from simnets.data.arrays import reason
from simnets.errors import SimNetsError

# Below the size at which Pillow itself begins to warn; decoded, this many pixels take 240 MB.
MAX_PIXELS = 80_000_000
# Only formats that Pillow decodes by itself: others start programs (EPS) or are rarely pictures.
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "PPM")
SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".ppm", ".pgm")


def read_image(path: str | Path, image_size: int | tuple[int, int] = 32, channels: int = 3) -> Tensor:
    """The picture in a file as uint8 (channels, H, W): upright, scaled to cover (H, W), centre cropped.

    `image_size` is H = W or (H, W); `channels` is 3 (RGB) or 1 (grey). Transparent pixels are laid on
    white; of an animation the first frame is taken. A file that is no picture, is cut short, or has more
    than 80 million pixels (known before decoding) is refused.

    >>> read_image("cat.jpg", 32).shape  # doctest: +SKIP
    torch.Size([3, 32, 32])
    """
    height, width = (image_size, image_size) if isinstance(image_size, int) else image_size
    if min(height, width) < 1 or channels not in (1, 3):
        raise SimNetsError(f"image_size must be ≥ 1 and channels 1 or 3; got {image_size} and {channels}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # the test below is stricter
            image: Image.Image = Image.open(path, formats=FORMATS)
        with image:
            if image.width * image.height > MAX_PIXELS:
                raise SimNetsError(
                    f"{path}: {image.width}×{image.height} pixels are more than {MAX_PIXELS:,}; scale it down"
                )
            # JPEG decodes faster at a fraction of its size; twice the target leaves the scaling to us.
            image.draft(None, (2 * max(height, width),) * 2)
            image = _flatten(ImageOps.exif_transpose(image), "L" if channels == 1 else "RGB")
            image = ImageOps.fit(image, (width, height), Image.Resampling.BICUBIC)
            pixels = np.array(image).reshape(height, width, channels)
    except SimNetsError:
        raise
    except Image.DecompressionBombError as error:
        raise SimNetsError(f"{path}: has far more than {MAX_PIXELS:,} pixels; scale it down") from error
    except UnidentifiedImageError as error:
        raise SimNetsError(f"{path}: is not a picture of a known format ({', '.join(FORMATS)})") from error
    except Exception as error:  # a damaged picture makes the decoders raise almost anything
        raise SimNetsError(f"{path}: cannot be read as a picture ({reason(error)})") from error
    return torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)))


def _flatten(image: Image.Image, mode: str) -> Image.Image:
    """`image` in RGB or grey: 16-bit greys scaled to 8 bits, transparency laid on white."""
    if image.mode.startswith("I"):  # Pillow's own conversion would cut everything over 255
        return Image.fromarray((np.asarray(image) // 257).astype(np.uint8)).convert(mode)
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert(mode)
