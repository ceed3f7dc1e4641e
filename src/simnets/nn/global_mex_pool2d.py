"""`GlobalMexPool2d`: MEX over all locations of a map."""

from __future__ import annotations

import torch
from torch import Tensor

from simnets.nn._beta import BetaLayer
from simnets.nn._images import check_images
from simnets.nn._parameters import Mode
from simnets.ops import mex


class GlobalMexPool2d(BetaLayer):
    """MEX_β{x_rij}_ij over all locations, the last layer of sections 4.1 and 4.3: (N, C, H, W) → (N, C).

    Args:
        beta: 0 (global average), inf (global maximum), -inf, or any number; its first value if it is learned.
        beta_mode: "learned" (β then is finite), "frozen", or a layer to share with. With the β of the
            classification MEX, both together are a single MEX (the collapsing property, section 2).

    Attributes: `beta`, which can be assigned.

    Example:
        >>> GlobalMexPool2d()(torch.tensor([[[[1.0, 2.0], [3.0, 6.0]]]])).tolist()
        [[3.0]]
    """

    def __init__(
        self,
        *,
        beta: float = 0.0,
        beta_mode: Mode = "frozen",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self._declare_beta(beta, beta_mode, device, dtype)

    def forward(self, x: Tensor) -> Tensor:
        check_images(x)
        return mex(x.flatten(2), self._number("beta"))

    def extra_repr(self) -> str:
        return self._describe("beta")
