"""What the layers on images (N, C, H, W) have in common: sizes, padding, patches."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from simnets.errors import SimNetsError

Size = int | tuple[int, int]


def pair(name: str, value: Size, minimum: int) -> tuple[int, int]:
    """An int, or (rows, columns), as two ints that are at least `minimum`."""
    both = (value, value) if isinstance(value, int) else tuple(value)
    if len(both) != 2 or not all(isinstance(size, int) and size >= minimum for size in both):
        raise SimNetsError(f"{name}={value!r}: expected an int or a pair of ints, at least {minimum}")
    return both


def check_images(x: Tensor, channels: int | None = None) -> None:
    if x.ndim != 4 or (channels is not None and x.shape[1] != channels):
        expected = "C" if channels is None else channels
        raise SimNetsError(f"x: expected images of shape (N, {expected}, H, W), got {tuple(x.shape)}")


def check_window(x: Tensor, kernel_size: tuple[int, int], padding: tuple[int, int]) -> None:
    height, width = (x.shape[2 + i] + 2 * padding[i] for i in range(2))
    if height < kernel_size[0] or width < kernel_size[1]:
        raise SimNetsError(
            f"x: maps of {x.shape[2]}×{x.shape[3]} with padding {padding} are smaller than "
            f"kernel_size {kernel_size}"
        )


def pad(x: Tensor, padding: tuple[int, int], value: float) -> Tensor:
    """Surround the maps with `value`: any number, NaN (missing data) and ±inf included."""
    rows, columns = padding
    return F.pad(x, (columns, columns, rows, rows), value=value) if rows or columns else x


def patches(x: Tensor, kernel_size: tuple[int, int], stride: tuple[int, int]) -> Tensor:
    """(N, C, H, W) → (N, H', W', C·kh·kw), coordinates in the order of a convolution's filters.

    The windows are a view; writing them out as rows is the only copy.
    """
    windows = x.unfold(2, kernel_size[0], stride[0]).unfold(3, kernel_size[1], stride[1])
    return windows.permute(0, 2, 3, 1, 4, 5).flatten(3)
