"""SimNet MLP on rows of a table: its start from a mixture, and the loop that trains it (sections 3 and 5)."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor, nn
from torch.nn import functional

from simnets.ops import mex, similarity
from simnets.pretrain import GeneralizedGaussianMixture, select_components

# Of the posterior over templates at the start: harder, and only the nearest template would learn
PERPLEXITY = 4.0
_MOST_TEMPLATES = 128
_MIXTURE_ROWS = 20_000
_EM_NUMBERS = 1e10  # rows × features × templates × passes
# A template that a class never meets counts this share of a fair one, or its offset would start at −∞
_LEAST_SHARE = 1e-3
# Share of the mean that is added to each squared scale: a constant column must not outweigh all others
_RIDGE = 0.1


class TableNetwork(nn.Module):
    """h_r(x) = MEX_β{u_l·φ(x, z_l) + b_rl}_l, in the coordinates that it is trained in.

    h = λ·MEX_1{g_l·φ(x, z_l) + c_rl} with λ = 1/β, g = β·u and c = β·b is the same function (section 2), but
    λ is the scale of the scores alone and g the width of the kernels alone, so both are easy to start and
    to learn. With unit weights, u = 1, there is only β: g = 1/λ.

    templates z (n, d); log_g (n, d), or (1, d) where all templates share their weights, or None for
    unit weights; offsets c (k, n); log_scale log λ; log_p. NaN coordinates of x are integrated out.
    """

    templates: Tensor
    log_g: Tensor | None
    offsets: Tensor
    log_scale: Tensor
    log_p: Tensor

    def __init__(
        self,
        kind: str,
        templates: Tensor,
        log_g: Tensor | None,
        offsets: Tensor,
        log_scale: float,
        p: float,
        learned: tuple[str, ...] = (),
    ) -> None:
        super().__init__()
        self.kind = kind
        number = templates.new_tensor
        for name, value in (
            ("templates", templates),
            ("log_g", log_g),
            ("offsets", offsets),
            ("log_scale", number(log_scale)),
            ("log_p", number(math.log(p))),
        ):
            parameter = None if value is None else nn.Parameter(value.detach().clone(), name in learned)
            self.register_parameter(name, parameter)
        self._p = None if "log_p" in learned else float(p)  # exactly 2 has a faster path than almost 2

    @property
    def p(self) -> float | Tensor:
        return self.log_p.exp() if self._p is None else self._p

    def exponents(self, x: Tensor) -> Tensor:
        """β·u_l·φ(x, z_l), (N, n): the logarithms of K_θ(x, z_l)."""
        z, p, linear = self.templates, self.p, self.kind == "linear"
        options: dict[str, Any] = {"kind": self.kind, "nan_policy": "omit"}
        if not x.isnan().any():
            options["nan_policy"] = "propagate"
        if self.log_g is None:
            return similarity(x, z, None, p, **options) * (-self.log_scale).exp()
        if len(self.log_g) == 1:  # the weights are a choice of units, and without weights it is faster
            root = self.log_g.exp() if linear else (self.log_g / p).exp()
            return similarity(x * root, z if linear else z * root, None, p, **options)
        result = similarity(x, z, self.log_g.exp(), p, **options)
        if options["nan_policy"] == "omit" and not linear:
            # ∫ exp(−g·|x − z|^p) dx = const·g^(−1/p): what a missing coordinate leaves of the kernel
            result = result - x.isnan().to(x.dtype) @ (self.log_g / p).clamp(-1e4, 1e4).T
        return result

    def forward(self, x: Tensor, kept: Tensor | None = None) -> Tensor:
        """h (N, k); kept (N, n): the templates that each row has, as if the others did not exist."""
        exponents = self.exponents(x)
        if kept is not None:
            # the mean counts them still, which lowers all classes alike
            exponents = exponents.masked_fill(~kept, -math.inf)
        return self.log_scale.exp() * mex(exponents, 1.0, self.offsets)

    def slope(self) -> Tensor:
        """(1/n)·Σ_l |p·u_l∘z_l|²: at p = 2, the squared slopes of the similarities at the mean row x = 0."""
        u = 1.0 if self.log_g is None else (self.log_scale + self.log_g).exp()
        factor = 1.0 if self.kind == "linear" else self.p
        return (factor * u * self.templates).square().sum(1).mean()


def pretrained(
    x: Tensor,
    labels: Tensor,
    row_weights: Tensor,
    *,
    classes: int,
    n_templates: int | None,
    kind: str,
    weights: str,
    p: float | None,
    beta: float | None,
    seed: int,
) -> TableNetwork:
    """The network that training starts from, for standardised rows x (N, d). None: learned, or chosen.

    z and the weights are the means and pooled scales of a mixture of generalized Gaussians, which sees no
    labels (section 5). The weights are scaled until the posterior over templates has perplexity 4, offsets
    are c_rl = log P(class r | template l), by soft counts, which makes exp(h_r) the class posterior of that
    mixture for λ = 1; λ is then the power of √2 with the least loss. A linear similarity starts as the
    ℓ2 network that it equals: −g·|x − z|² = 2g·z·x − g·|z|² − g·|x|², whose last term all classes share.
    """
    order = 2.0 if p is None or kind == "linear" else p
    known = x.nan_to_num(nan=0.0)  # 0 is the mean; training itself integrates missing values out
    z, power = _mixture(known, row_weights, n_templates, order, seed)
    n = len(z)
    power = power + _RIDGE * power.mean()
    unit = weights == "unit" and kind == "lp"
    g = torch.ones(1, x.shape[1]) if unit else 1 / power[None]
    root = g ** (1 / order)
    s = similarity(known * root, z * root, None, order)
    if unit and beta is not None:
        softening = beta
    else:
        softening = _softening(s, row_weights, min(PERPLEXITY, n / 2)) if n > 1 else 1.0
    g, s = g * softening, s * softening
    posterior = torch.softmax(s, 1) * row_weights[:, None]
    counts = torch.zeros(classes, n).index_add_(0, labels, posterior)
    counts = counts + _LEAST_SHARE * counts.sum() / counts.numel()
    c = (counts / counts.sum(0)).log()
    if unit:
        log_scale = -math.log(softening)
    elif beta is not None:
        log_scale = -math.log(beta)
    else:
        scores = mex(s, 1.0, c)
        log_scale = (
            math.log(2)
            * 0.5
            * min(range(-4, 15), key=lambda e: float(_loss(2 ** (e / 2) * scores, labels, row_weights)))
        )
    if kind == "linear":
        c = c - (g * z.square()).sum(1)
        g = 2 * g
        if weights == "unit":
            z = z * g * math.exp(log_scale)  # u = 1: their scale goes into the templates
    log_g = None if weights == "unit" else g.log().expand(n if weights == "learned" else 1, -1)
    learned = ["templates", "offsets"]
    learned += ["log_g"] if log_g is not None else []
    learned += ["log_scale"] if beta is None else []
    learned += ["log_p"] if p is None and kind == "lp" else []
    return TableNetwork(kind, z, log_g, c, log_scale, order, tuple(learned))


def _mixture(
    x: Tensor, row_weights: Tensor, n_templates: int | None, shape: float, seed: int
) -> tuple[Tensor, Tensor]:
    """Means (n, d) and the p-th power of the scales (d,), pooled over components."""
    rows = _resampled(x, row_weights, seed)
    distinct = len(torch.unique(rows, dim=0))
    if distinct == 1:
        return rows[:1], torch.ones(x.shape[1])
    most = min(distinct, _MOST_TEMPLATES if n_templates is None else n_templates)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # it is only a start
        if n_templates is None:
            # a mixture with as many components as rows explains them all
            most = select_components(
                rows, shape, criterion="bic", most=max(1, min(most, len(rows) // 4)), random_state=seed
            ).components
        # k-means has done most of the work; on large tables the rest is left to training
        passes = min(max(int(_EM_NUMBERS / (most * rows.numel())), 5), 30)
        mixture = GeneralizedGaussianMixture(most, shape, max_iter=passes, random_state=seed).fit(rows)
    density = mixture.density_
    return density.means.float(), (density.weights @ density.scales**shape).float()


def _resampled(x: Tensor, row_weights: Tensor, seed: int) -> Tensor:
    """Rows in proportion to their weights, for a mixture that knows no weights."""
    if len(x) > _MIXTURE_ROWS:
        generator = torch.Generator().manual_seed(seed)
        return x[torch.multinomial(row_weights, _MIXTURE_ROWS, replacement=True, generator=generator)]
    if bool((row_weights == row_weights[0]).all()):
        return x
    ends = (row_weights.double().cumsum(0) * (4 * len(x)) / row_weights.double().sum()).round().long()
    return x.repeat_interleave(ends.diff(prepend=ends.new_zeros(1)), 0)


def _softening(s: Tensor, row_weights: Tensor, perplexity: float) -> float:
    """The factor at which softmax(factor·s) has this perplexity, which falls as the factor grows."""
    low, high = -20.0, 20.0
    for _ in range(30):
        middle = (low + high) / 2
        log = torch.log_softmax(math.exp(middle) * s, 1)
        entropy = -(log.exp() * log).sum(1) @ row_weights / row_weights.sum()
        low, high = (middle, high) if math.exp(entropy) > perplexity else (low, middle)
    return math.exp((low + high) / 2)


def _loss(scores: Tensor, labels: Tensor, row_weights: Tensor) -> Tensor:
    """Softmax loss; the weights have mean 1 over all rows."""
    return (functional.cross_entropy(scores, labels, reduction="none") * row_weights).mean()


Moments = dict[str, dict[str, NDArray[Any]]]


class Training:
    """Adam on the softmax loss + alpha·slope, on batches of rows (N, d), labels and weights of mean 1.

    Rows have Gaussian `noise` added, and do without a random share `dropout` of the templates.

    `moments` is the optimiser's state as arrays, to go on with later.
    """

    def __init__(
        self,
        network: TableNetwork,
        *,
        learning_rate: float,
        alpha: float,
        noise: float,
        dropout: float,
        generator: torch.Generator,
        moments: Moments | None = None,
    ) -> None:
        self.network, self.generator = network, generator
        self.alpha, self.noise, self.dropout = alpha, noise, dropout
        self.rate = learning_rate
        self.parameters = {name: v for name, v in network.named_parameters() if v.requires_grad}
        self.optimizer = torch.optim.Adam(self.parameters.values(), lr=learning_rate, betas=(0.9, 0.99))
        for name, state in (moments or {}).items():
            if name in self.parameters:
                tensors = {key: torch.tensor(array) for key, array in state.items()}
                self.optimizer.state[self.parameters[name]] = tensors

    @property
    def moments(self) -> Moments:
        return {
            name: {key: tensor.numpy().copy() for key, tensor in self.optimizer.state[value].items()}
            for name, value in self.parameters.items()
        }

    @torch.no_grad()
    def loss(self, x: Tensor, labels: Tensor, row_weights: Tensor) -> float:
        """Softmax loss of these rows, without noise or penalty."""
        return float(_loss(self.network(x), labels, row_weights))

    def epoch(
        self,
        x: Tensor,
        labels: Tensor,
        row_weights: Tensor,
        batch_size: int,
        span: tuple[float, float] | None = None,
    ) -> float:
        """One pass in random order; the mean loss.

        span: the shares of training that are over before and after the pass, which set the rate; without
        them it is constant.
        """
        order = torch.randperm(len(x), generator=self.generator)
        total = 0.0
        for start in range(0, len(x), batch_size):
            rate = 1.0 if span is None else one_cycle(span[0] + (span[1] - span[0]) * start / len(x))
            for group in self.optimizer.param_groups:
                group["lr"] = self.rate * rate
            chosen = order[start : start + batch_size]
            rows = x[chosen]
            if self.noise:
                rows = rows + self.noise * torch.randn(rows.shape, generator=self.generator)
            loss = _loss(self.network(rows, self._kept(len(rows))), labels[chosen], row_weights[chosen])
            if self.alpha:
                loss = loss + self.alpha * self.network.slope()
            self.optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
            total += float(loss.detach()) * len(chosen)
        return total / len(x)

    def _kept(self, rows: int) -> Tensor | None:
        """The templates that each row has in this step; one that lost all of them has them all."""
        if not self.dropout:
            return None
        shape = rows, len(self.network.templates)
        kept = torch.rand(shape, generator=self.generator) >= self.dropout
        return kept | ~kept.any(1, keepdim=True)


def one_cycle(share: float) -> float:
    """The rate, as a share of its peak, when this share of training is over: 10 % warm-up, then a cosine."""
    return share / 0.1 if share < 0.1 else 0.5 * (1 + math.cos(math.pi * (share - 0.1) / 0.9))


def merged(
    x: NDArray[Any], labels: NDArray[np.int64], row_weights: NDArray[np.float64]
) -> tuple[NDArray[Any], NDArray[np.int64], NDArray[np.float64]]:
    """Each distinct row with its label once, in an order of its own, its weights summed; none with weight 0.

    So a row with weight 2 and a row that is there twice are the same thing to all that follows, to the last
    bit, and the order of the rows does not matter.
    """
    kept = row_weights > 0
    x, labels, row_weights = x[kept], labels[kept], row_weights[kept]
    keyed = np.ascontiguousarray(np.column_stack([x, labels]).astype(np.float64)) + 0.0  # no −0
    keyed[np.isnan(keyed)] = np.nan  # one NaN of the many
    bytes_of_rows = keyed.view(np.dtype((np.void, keyed.dtype.itemsize * keyed.shape[1]))).ravel()
    _, first, inverse = np.unique(bytes_of_rows, return_index=True, return_inverse=True)
    totals = np.bincount(inverse.ravel(), row_weights).astype(np.float64)
    return x[first], labels[first], totals
