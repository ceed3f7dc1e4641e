"""`ConvSimilarity2d`: the paper's conv→ℓp-sim, similarity in whitened coordinates."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from simnets.errors import SimNetsError
from simnets.nn._contrast import contrast_convolution
from simnets.nn._images import Size, check_images, check_window, pad, pair
from simnets.nn._maps import convolves, natural_maps, similarity_maps
from simnets.nn._normalization import folded, neutral_norm, new_norm, normalised
from simnets.nn._parameters import REAL, Layer, Mode
from simnets.nn.similarity import Similarity, SimilarityOptions


class ConvSimilarity2d(Layer):
    """Whitened similarity, conv→ℓp-sim, section 4.2: y_ij = W·x_ij + a, then s_lij = Σ_t u_lt·φ(y_ijt, z_lt).

    A convolution whose d filters are the rows of W maps each patch to a vector y_ij, which a similarity with
    receptive field 1×1 matches with n templates. (N, C, H, W) → (N, n, H', W'); channels-last stays so.

    W may be learned in other coordinates: after `precondition(A)` the learned tensor is V and the convolution
    uses W = V·A. `fold()` makes it W again. Neither changes the output. Templates, too: see `to_natural`. And
    W·x may be normalised over each batch while training: see `normalize`.

    Args:
        in_channels, whitened_channels, out_channels: C, d and n.
        kernel_size, stride, padding: of the convolution, an int or (rows, columns).
        padding_value: the out-of-image value: any number, ±inf, or NaN.
        depthwise: a filter for each channel, y_c = w_c·x_c + a_c: d = C, and filters are (C, 1, kh, kw).
        contrast: if > 0, W sees patches of equal contrast, (x_ij − m_ij) / √(v_ij + contrast) with the mean
            m_ij and the variance v_ij of the patch.
        filters_mode: of W: "learned", "frozen", or a `ConvSimilarity2d` to share with.
        conv_bias_mode: of a: the same, or "none".
        **options: those of `Similarity`. A layer to share with is a `ConvSimilarity2d` or a `Similarity`.

    Attributes: `filters` W, or V once preconditioned (d, C, kh, kw), and `conv_bias` a (d,) can be assigned;
    `effective_filters` is always W; `similarity` is the `Similarity` of d features, which holds templates,
    weights, p and bias; `preconditioner` is A (m, m) with m = C·kh·kw (kh·kw if depthwise), or None.
    `effective_templates` is always z (n, d); `slope_norms` (n,) is |v_l| as `to_natural` found it, or None.
    `batch_norm` is what `normalize` put in, or None.

    Example:
        >>> layer = ConvSimilarity2d(3, 16, 32, kernel_size=5, padding=2)
        >>> layer(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 32, 32, 32])
    """

    filters: Tensor
    conv_bias: Tensor | None
    preconditioner: Tensor | None
    slope_norms: Tensor | None

    def __init__(
        self,
        in_channels: int,
        whitened_channels: int,
        out_channels: int,
        kernel_size: Size,
        *,
        stride: Size = 1,
        padding: Size = 0,
        padding_value: float = 0.0,
        depthwise: bool = False,
        contrast: float = 0.0,
        filters_mode: Mode = "learned",
        conv_bias_mode: Mode = "learned",
        **options: Unpack[SimilarityOptions],
    ) -> None:
        super().__init__()
        self.in_channels = in_channels
        self.whitened_channels = whitened_channels
        self.out_channels = out_channels
        self.kernel_size = pair("kernel_size", kernel_size, 1)
        self.stride = pair("stride", stride, 1)
        self.padding = pair("padding", padding, 0)
        self.padding_value = float(padding_value)
        device, dtype = options.get("device"), options.get("dtype")
        if not isinstance(in_channels, int) or in_channels < 1:
            raise SimNetsError(f"in_channels={in_channels!r}: expected a positive int")
        if depthwise and whitened_channels != in_channels:
            raise SimNetsError(
                f"whitened_channels={whitened_channels!r}: a depthwise layer has as many as in_channels, "
                f"{in_channels}"
            )
        if not 0 <= contrast < math.inf or (contrast and depthwise):
            expected = "0 in a depthwise layer" if depthwise else "a number of at least 0"
            raise SimNetsError(f"contrast={contrast!r}: expected {expected}")
        self.depthwise = depthwise
        self.contrast = float(contrast)
        self.similarity = Similarity(whitened_channels, out_channels, **options)
        shape = (whitened_channels, 1 if depthwise else in_channels, *self.kernel_size)
        self._filters_are_shared = isinstance(filters_mode, nn.Module)
        if isinstance(filters_mode, ConvSimilarity2d):
            filters_mode._check_no_preconditioner("filters_mode")
        self._declare("filters", filters_mode, shape, REAL, device=device, dtype=dtype)
        if isinstance(filters_mode, ConvSimilarity2d):
            filters_mode._filters_are_shared = True
        self._declare("conv_bias", conv_bias_mode, shape[:1], REAL, optional=True, device=device, dtype=dtype)
        self.register_buffer("preconditioner", None)
        self.register_buffer("slope_norms", None)
        self.batch_norm: nn.BatchNorm2d | None = None
        self._reset_convolution()

    def reset_parameters(self) -> None:
        """W and a uniform in ±1/√m, as in torch's convolutions; the rest as in `Similarity`."""
        self.slope_norms = None
        self._reset_convolution()
        self.similarity.reset_parameters()

    def _reset_convolution(self) -> None:
        bound = self._fan_in**-0.5
        if self._owns("filters"):
            self.preconditioner = None
            nn.init.uniform_(self.filters, -bound, bound)
        if self.conv_bias is not None and self._owns("conv_bias"):
            nn.init.uniform_(self.conv_bias, -bound, bound)

    @property
    def _fan_in(self) -> int:
        return (1 if self.depthwise else self.in_channels) * math.prod(self.kernel_size)

    # ── W = V·A ──────────────────────────────────────────────────────────────────────────────────────

    @property
    def effective_filters(self) -> Tensor:
        """W (d, C, kh, kw), whatever the coordinates in which it is learned."""
        if self.preconditioner is None:
            return self.filters
        return (self.filters.flatten(1) @ self.preconditioner).view_as(self.filters)

    @torch.no_grad()
    def precondition(self, a: Tensor) -> None:
        """Learn V instead of W = V·A from now on, for an invertible A (m, m).

        V becomes W·A⁻¹, so that W stays what it is. A is kept in the state dict.
        A second call replaces the first one's A.
        """
        if self._filters_are_shared:
            raise SimNetsError(
                "precondition: the filters are shared with another layer, which would change with them"
            )
        m = self._fan_in
        if tuple(a.shape) != (m, m):
            raise SimNetsError(f"precondition: expected A of shape {(m, m)}, got {tuple(a.shape)}")
        w = self.effective_filters
        exact = a.detach().to("cpu", torch.float64)
        v, singular = torch.linalg.solve_ex(exact, w.flatten(1).to("cpu", torch.float64), left=False)
        v, a = v.to(w), exact.to(w)
        error = (v @ a - w.flatten(1)).abs().max()
        # A may be invertible and yet too badly conditioned for the layer's precision
        if singular or not error <= torch.finfo(w.dtype).eps ** 0.5 * w.abs().max():
            raise SimNetsError(
                "precondition: A is singular, not finite or too badly conditioned; add to its diagonal"
            )
        self.preconditioner = a
        self.filters.copy_(v.view_as(w))

    @torch.no_grad()
    def fold(self) -> None:
        """Write W = V·A and `batch_norm` into `filters` and `conv_bias`: the layer is again the paper's."""
        self.filters.copy_(self.effective_filters)
        self.preconditioner = None
        if self.batch_norm is not None:
            assert self.conv_bias is not None
            self.filters, self.conv_bias = folded(self.batch_norm, self.filters, self.conv_bias)
            self.batch_norm = None

    @torch.no_grad()
    def normalize(self) -> None:
        """Bring each channel of W·x to mean 0 and variance 1 from now on, over a batch while training.

        The bias is added afterwards. In evaluation running averages stand for the batch; they start so that
        nothing changes, and pre-training makes that the mean and the variance. `fold` writes them into W and
        the bias.
        """
        if self.conv_bias is None:
            raise SimNetsError("normalize: the layer has no conv_bias to take the mean into")
        if self._filters_are_shared:
            raise SimNetsError("normalize: the filters are shared with another layer, which would differ")
        self.batch_norm = neutral_norm(self.filters, self.conv_bias, training=self.training)
        self.conv_bias = torch.zeros_like(self.conv_bias)

    def of_constants(self, constants: Tensor) -> Tensor:
        """W·x (d,) of a map whose channels are constants (C,)."""
        sums = self.effective_filters.to(constants).sum((2, 3))
        return sums.squeeze(1) * constants if self.depthwise else sums @ constants

    def _check_no_preconditioner(self, argument: str) -> None:
        if self.preconditioner is not None:
            raise SimNetsError(f"{argument}: the layer to share with is preconditioned; fold() it first")

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any) -> None:
        # in which coordinates W and z are learned is part of the state
        for name in ("preconditioner", "slope_norms"):
            saved = state_dict.get(prefix + name)
            setattr(self, name, None if saved is None else self.filters.new_empty(saved.shape))
        normalised = f"{prefix}batch_norm.running_mean" in state_dict
        self.batch_norm = new_norm(self.filters, training=self.training) if normalised else None
        super()._load_from_state_dict(state_dict, prefix, *args)

    # ── v = 2u∘z ─────────────────────────────────────────────────────────────────────────────────────

    @property
    def effective_templates(self) -> Tensor:
        """z (n, d), whatever the coordinates in which it is learned."""
        z = self.similarity.templates
        return z if self.slope_norms is None else z / (2 * self._weights)

    @torch.no_grad()
    def to_natural(self) -> Tensor:
        """Learn v = 2u∘z instead of z from now on, for ℓ2; returns the constants Σ_t u_lt·z_lt² (n,).

        −Σ u·(y − z)² = Σ v·y − Σ u·y² − Σ u·z²: (v, u) are the natural parameters of the Gaussian whose
        log-density s is. A template that lies far away with a small weight, v fixed and u → 0, is a linear
        filter, which z and u can hardly be taught. The last term is left out, so that the outputs are larger
        by the constants that are returned; what follows has to take them away.
        """
        layer = self.similarity
        ell2 = layer.kind == "lp" and isinstance(layer.order, float) and layer.order == 2.0
        if not ell2 or layer.weights is None or layer.normalization:
            raise SimNetsError("to_natural: expected an ℓ2 similarity with weights and without normalization")
        if self.slope_norms is not None:
            raise SimNetsError("to_natural: the layer's templates are in natural coordinates already")
        z, u = (value.to("cpu", torch.float64) for value in (layer.templates, self._weights))
        constants = (u * z * z).sum(1)
        layer.templates = 2 * u * z
        self.slope_norms = layer.templates.norm(dim=1)
        return constants

    @torch.no_grad()
    def from_natural(self) -> Tensor:
        """Undo `to_natural`: `templates` are z again, and the outputs smaller by the constants returned."""
        z, u = (value.to("cpu", torch.float64) for value in (self.effective_templates, self._weights))
        if self.slope_norms is None:
            return torch.zeros_like(z[:, 0])
        constants = (u * z * z).sum(1)
        self.slope_norms = None
        self.similarity.templates = z
        return constants

    @property
    def _weights(self) -> Tensor:
        u = self.similarity.weights
        return torch.ones_like(self.similarity.templates) if u is None else u

    # ── forward ──────────────────────────────────────────────────────────────────────────────────────

    def forward(self, x: Tensor) -> Tensor:
        layer = self.similarity
        if self.slope_norms is None and layer.kind == "lp" and convolves(layer):
            # similarities do not change when y and z move together, so no gradient runs through the centre;
            # taken away within the bias it costs nothing
            center = layer.templates.detach().mean(0)
            return similarity_maps(layer, self.whiten(x, -center), center)
        return self.match(self.whiten(x))

    def whiten(self, x: Tensor, shift: Tensor | None = None) -> Tensor:
        """y (N, d, H', W'), and `shift` (d,) more."""
        check_images(x, self.in_channels)
        check_window(x, self.kernel_size, self.padding)
        bias = self.conv_bias
        if shift is not None:
            bias = shift if bias is None else bias + shift
        padding = self.padding
        if self.padding_value != 0 or self.contrast:
            x, padding = pad(x, padding, self.padding_value), (0, 0)
        filters, own_bias = self.effective_filters, bias if self.batch_norm is None else None
        if self.contrast:
            y = contrast_convolution(x, filters, own_bias, self.contrast, self.stride)
        else:
            groups = self.in_channels if self.depthwise else 1
            y = F.conv2d(x, filters, own_bias, self.stride, padding, groups=groups)
        if self.batch_norm is None:
            return y
        assert bias is not None
        return normalised(self.batch_norm, y, bias)

    def match(self, y: Tensor) -> Tensor:
        """The similarities (N, n, H', W') of whitened maps."""
        if self.slope_norms is not None:
            return natural_maps(self.similarity, y)
        if convolves(self.similarity):
            return similarity_maps(self.similarity, y)
        result: Tensor = self.similarity(y.permute(0, 2, 3, 1))
        return result.permute(0, 3, 1, 2)

    def extra_repr(self) -> str:
        words = [
            f"{self.in_channels}, {self.whitened_channels}, {self.out_channels}, "
            f"kernel_size={self.kernel_size}, stride={self.stride}"
        ]
        if self.padding != (0, 0):
            words.append(f"padding={self.padding}, padding_value={self.padding_value:g}")
        words.append(self._describe("filters", "conv_bias"))
        if self.depthwise:
            words.append("depthwise")
        if self.contrast:
            words.append(f"contrast={self.contrast:g}")
        if self.preconditioner is not None:
            words.append("preconditioned")
        if self.slope_norms is not None:
            words.append("natural")
        return ", ".join(words)
