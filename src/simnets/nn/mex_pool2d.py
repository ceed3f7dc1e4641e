"""`MexPool2d`: MEX over windows, of which max and average pooling are two cases."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from simnets.errors import SimNetsError
from simnets.nn._beta import BetaLayer
from simnets.nn._images import Size, check_images, check_window, pair
from simnets.nn._parameters import Mode
from simnets.nn._window_mex import window_mex


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
        return window_mex(x, beta, *window, self.ceil_mode)

    def extra_repr(self) -> str:
        words = [
            f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}",
            self._describe("beta"),
        ]
        if self.ceil_mode:
            words.append("ceil_mode")
        return ", ".join(words)
