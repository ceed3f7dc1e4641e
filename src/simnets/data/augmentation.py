"""Random flips, shifts, warps and cut-outs of whole batches of uint8 images."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from simnets.errors import SimNetsError


@dataclass(frozen=True)
class Draws:
    """The random choices for n images: flips (n,), shifts (n, 2) and cut-out centres (n, 2), rows first, and
    warps (n, 2, 2), how far a linear map of the plane is from the identity, 0 for about half of the images.
    """

    flips: Tensor
    shifts: Tensor
    centres: Tensor
    warps: Tensor

    def part(self, share: slice) -> Draws:
        """The choices for some of the images."""
        return Draws(self.flips[share], self.shifts[share], self.centres[share], self.warps[share])


@dataclass(frozen=True)
class Augmentation:
    """Flip left to right with probability ½; move by up to `shift` pixels each way; warp; blank a square.

    What a shift uncovers is black (`padding="zero"`) or mirrored (`padding="reflect"`). With `warp`, half of
    the images are turned, zoomed and sheared about their centre, all in one: the four entries of a matrix
    differ from those of the identity by up to `warp`. The others stay sharp, for interpolation blurs, and
    test images are not blurred. The square of `cutout` × `cutout` pixels lies anywhere with its centre
    inside the image, and is black.

    Choices are drawn apart from being applied, so that each of several processes can draw for the whole
    batch and apply to its own share: `apply(images[share], draw(n, …).part(share))`.
    """

    flip: bool = True
    shift: int = 4
    cutout: int = 0
    padding: str = "zero"
    warp: float = 0.0

    def __post_init__(self) -> None:
        if self.shift < 0 or self.cutout < 0:
            raise SimNetsError(f"shift and cutout must be ≥ 0; got {self.shift} and {self.cutout}")
        if self.padding not in ("zero", "reflect"):
            raise SimNetsError(f'padding must be "zero" or "reflect"; got {self.padding!r}')
        if not 0 <= self.warp < 0.5:
            raise SimNetsError(
                f"warp must be at least 0 and less than 0.5, or images may fold; got {self.warp}"
            )

    def draw(self, count: int, height: int, width: int, generator: torch.Generator) -> Draws:
        """The choices for `count` images; always the same numbers are drawn, whatever is switched on."""
        flips = torch.randint(2, (count,), generator=generator).bool()
        shifts = torch.randint(-self.shift, self.shift + 1, (count, 2), generator=generator)
        rows = torch.randint(height, (count, 1), generator=generator)
        columns = torch.randint(width, (count, 1), generator=generator)
        warps = self.warp * (2 * torch.rand(count, 2, 2, generator=generator) - 1)
        warps *= torch.randint(2, (count, 1, 1), generator=generator)
        return Draws(flips, shifts, torch.cat([rows, columns], dim=1), warps)

    def apply(self, images: Tensor, draws: Draws) -> Tensor:
        """The uint8 images (N, C, H, W), each changed as was drawn for it; `images` stay as they are."""
        n, c, h, w = images.shape
        if self.padding == "reflect" and self.shift >= min(h, w):
            raise SimNetsError(
                f"shift must be less than the image size to mirror; got {self.shift} for {h}×{w}"
            )
        device = images.device
        flips, shifts, centres = draws.flips.to(device), draws.shifts.to(device), draws.centres.to(device)
        rows = torch.arange(h, device=device).expand(n, h)
        columns = torch.arange(w, device=device).expand(n, w)
        if self.flip or self.shift:
            # One gather does both: output pixel (y, x) comes from (y + dy, ±x + dx) of the padded image.
            s = self.shift
            mirrored = torch.where(flips[:, None], w - 1 - columns, columns) if self.flip else columns
            padded = F.pad(images, (s, s, s, s), mode="constant" if self.padding == "zero" else "reflect")
            from_rows, from_columns = rows + shifts[:, :1] + s, mirrored + shifts[:, 1:] + s
            index = from_rows[:, :, None] * (w + 2 * s) + from_columns[:, None, :]
            index = index.view(n, 1, h * w).expand(n, c, h * w)
            images = padded.reshape(n, c, (h + 2 * s) * (w + 2 * s)).gather(2, index).view(n, c, h, w)
        if self.warp:
            images = _warped(images, draws.warps.to(device))
        if self.cutout:
            first = centres - self.cutout // 2
            in_rows = (rows >= first[:, :1]) & (rows < first[:, :1] + self.cutout)
            in_columns = (columns >= first[:, 1:]) & (columns < first[:, 1:] + self.cutout)
            outside = ~(in_rows[:, :, None] & in_columns[:, None, :])
            images = images * outside[:, None]  # twenty times as fast as masked_fill
        return images


def _warped(images: Tensor, warps: Tensor) -> Tensor:
    """Each image seen through the linear map 1 + warp (2, 2), about its centre; edges are mirrored."""
    chosen = warps.flatten(1).any(1).nonzero().squeeze(1)
    if not len(chosen):
        return images  # affine_grid refuses an empty batch
    matrices = F.pad(warps[chosen] + torch.eye(2, device=warps.device), (0, 1))
    pixels = images[chosen].to(warps.dtype)
    grid = F.affine_grid(matrices, list(pixels.shape), align_corners=False)
    # bicubic: a bilinear one blurs much more
    pixels = F.grid_sample(pixels, grid, mode="bicubic", padding_mode="reflection", align_corners=False)
    return images.index_copy(0, chosen, pixels.round_().clamp_(0, 255).to(images.dtype))


def augment(
    images: Tensor,
    generator: torch.Generator,
    *,
    flip: bool = True,
    shift: int = 4,
    cutout: int = 0,
    padding: str = "zero",
    warp: float = 0.0,
) -> Tensor:
    """A randomly changed copy of uint8 images (N, C, H, W), fixed by the state of `generator` (a CPU one).

    >>> images = torch.zeros(10, 3, 32, 32, dtype=torch.uint8)
    >>> augment(images, torch.Generator().manual_seed(0), flip=True, shift=4).shape
    torch.Size([10, 3, 32, 32])
    """
    if images.dtype != torch.uint8 or images.dim() != 4:
        raise SimNetsError(f"images must be uint8 (N, C, H, W); got {images.dtype} {tuple(images.shape)}")
    augmentation = Augmentation(flip, shift, cutout, padding, warp)
    n, _, h, w = images.shape
    return augmentation.apply(images, augmentation.draw(n, h, w, generator))
