"""`MexPool2d`: MEX over windows, of which max and average pooling are two cases."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from simnets.errors import SimNetsError
from simnets.nn._beta import BetaLayer
from simnets.nn._images import Size, check_images, check_window, pair
from simnets.nn._parameters import Mode
from simnets.ops import mex


class MexPool2d(BetaLayer):
    """MEX_β over the locations of each window, channel by channel: the local pooling of section 4.3.

    β = inf is max pooling, 0 average pooling and -inf min pooling, and these run as torch's own, which give
    the whole gradient to one of several equal maxima. Locations outside of the image are absent for every β:
    they are neither in the sum nor in the count n.

    Args:
        kernel_size, stride, padding: an int or (rows, columns); stride None is kernel_size.
        beta: any number, 0, inf, -inf; its first value where it is learned.
        beta_mode: "learned" (β then is finite), "frozen", or a layer to share with.
        ceil_mode: keep windows that begin inside of the image and end outside, as in torch's pooling.

    Attributes: `beta`, which can be assigned.

    Example:
        >>> pool = MexPool2d(3, stride=2)
        >>> pool(torch.zeros(2, 32, 28, 28)).shape
        torch.Size([2, 32, 13, 13])
    """

    def __init__(
        self,
        kernel_size: Size,
        stride: Size | None = None,
        padding: Size = 0,
        *,
        beta: float = float("inf"),
        beta_mode: Mode = "frozen",
        ceil_mode: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.kernel_size = pair("kernel_size", kernel_size, 1)
        self.stride = self.kernel_size if stride is None else pair("stride", stride, 1)
        self.padding = pair("padding", padding, 0)
        self.ceil_mode = ceil_mode
        if any(2 * outside > size for outside, size in zip(self.padding, self.kernel_size, strict=True)):
            raise SimNetsError(
                f"padding={padding!r}: expected at most half of kernel_size {self.kernel_size}"
            )
        self._declare_beta(beta, beta_mode, device, dtype)

    def forward(self, x: Tensor) -> Tensor:
        check_images(x)
        check_window(x, self.kernel_size, self.padding)
        beta = self._number("beta")
        window = self.kernel_size, self.stride, self.padding
        if isinstance(beta, float):
            if beta == float("inf"):
                return F.max_pool2d(x, *window, ceil_mode=self.ceil_mode)
            if beta == float("-inf"):
                return -F.max_pool2d(-x, *window, ceil_mode=self.ceil_mode)
            if beta == 0:
                return F.avg_pool2d(x, *window, ceil_mode=self.ceil_mode, count_include_pad=False)
        result = x
        # The collapsing property (section 2): MEX of a window is MEX of its rows' MEX, at the borders too,
        # where what is left of a window is a rectangle. That is kh + kw terms a window instead of kh·kw.
        for dim in (3, 2):
            result = self._pool_along(result, dim, beta)
        channels_last = x.is_contiguous(memory_format=torch.channels_last)
        return result.contiguous(
            memory_format=torch.channels_last if channels_last else torch.contiguous_format
        )

    def _pool_along(self, x: Tensor, dim: int, beta: float | Tensor) -> Tensor:
        """MEX over windows of one dimension: the whole ones at once, those cut off by a border one by one."""
        length, kernel = x.shape[dim], self.kernel_size[dim - 2]
        stride, padding = self.stride[dim - 2], self.padding[dim - 2]
        count = (length + 2 * padding - kernel) // stride + 1
        # ceil mode: one window more, if it reaches beyond the padding and begins within the image
        if (
            self.ceil_mode
            and (count - 1) * stride + kernel < length + 2 * padding
            and count * stride < length + padding
        ):
            count += 1
        first = min(-(-padding // stride), count)  # whole windows: from this one
        last = max((length + padding - kernel) // stride + 1, first)  # to before this one
        pieces = [self._cut_off(x, dim, step * stride - padding, beta) for step in range(first)]
        if first < last:
            inside = x.narrow(dim, first * stride - padding, (last - first - 1) * stride + kernel)
            pieces.append(mex(inside.unfold(dim, kernel, stride), beta))
        pieces += [self._cut_off(x, dim, step * stride - padding, beta) for step in range(last, count)]
        return torch.cat(pieces, dim)

    def _cut_off(self, x: Tensor, dim: int, start: int, beta: float | Tensor) -> Tensor:
        """MEX over the part of a window that lies within the image."""
        first, last = max(start, 0), min(start + self.kernel_size[dim - 2], x.shape[dim])
        return mex(x.narrow(dim, first, last - first), beta, dim=dim).unsqueeze(dim)

    def extra_repr(self) -> str:
        words = [
            f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}",
            self._describe("beta"),
        ]
        if self.ceil_mode:
            words.append("ceil_mode")
        return ", ".join(words)
