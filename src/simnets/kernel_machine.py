"""SimNet MLP seen as a kernel machine, and kernel machines turned into SimNet MLPs (section 3).

h_r(x) = σ(Σ_l α_rl·K_θ(x, z_l)),  α_rl = exp(β·b_rl),  σ(t) = (1/β)·ln(t/n)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.special import logsumexp
from sklearn.metrics.pairwise import laplacian_kernel, rbf_kernel
from sklearn.multiclass import OneVsRestClassifier
from sklearn.svm import SVC, NuSVC
from sklearn.utils.validation import check_array, check_is_fitted

from simnets.errors import SimNetsError
from simnets.ops import similarity

Array = NDArray[np.float64]


def _tensor(array: ArrayLike) -> torch.Tensor:
    return torch.tensor(np.asarray(array), dtype=torch.float64)


@dataclass(frozen=True)
class SimilarityKernel:
    """K(x, y) = exp(β·Σ_i u_i·φ(x_i, y_i)), rows taken in the units x̂ = (x − mean)/scale. A callable for SVC.

    weights u (d,) or None for 1. Positive semi-definite for kind "linear" and for p ≤ 2.

    >>> kernel = SimilarityKernel("lp", p=2.0, beta=0.5, mean=np.zeros(1), scale=np.ones(1))
    >>> kernel.name, kernel([[0.0]], [[2.0]]).round(4).tolist()
    ('rbf', [[0.1353]])
    """

    kind: str
    p: float
    beta: float
    mean: Array
    scale: Array
    weights: Array | None = None

    @property
    def name(self) -> str:
        if self.kind == "linear":
            return "exponential"
        return {1.0: "laplacian", 2.0: "rbf"}.get(self.p, "generalized gaussian")

    def __call__(self, X: ArrayLike, Y: ArrayLike | None = None) -> Array:
        x = self._units(X)
        y = x if Y is None else self._units(Y)
        exponents = self.beta * similarity(x, y, None, self.p, kind=self.kind)
        if self.kind == "lp":
            exponents.clamp_max_(0.0)  # matrix products may leave 1e-16 of nothing
        return exponents.exp().numpy()

    def _units(self, rows: ArrayLike) -> torch.Tensor:
        x = (np.asarray(rows, dtype=np.float64) - self.mean) / self.scale
        if self.weights is not None:
            x = x * self.weights ** (1 / (2.0 if self.kind == "linear" else self.p))
        return _tensor(x)


@dataclass(frozen=True)
class MultipleKernel:
    """K(x, y) = ψ(x)·ψ(y), ψ_l(x) ∝ K_θ(x, z_l) = exp(β·u_l·φ(x, z_l)), |ψ(x)| = 1. A callable for SVC.

    With weights of their own, templates have one kernel each, and no single kernel makes the network a
    kernel machine (theorem 1). Its outputs are linear in the n values K_θ(x, z_l), though: the sum of
    products above is the kernel of that feature space, positive semi-definite for every p and u. Scaling ψ(x)
    to length 1 adds the same number to all h_r(x), so it changes no decision.
    """

    machine: KernelMachine

    name = "multiple"

    def __call__(self, X: ArrayLike, Y: ArrayLike | None = None) -> Array:
        left = self._features(X)
        return np.asarray(left @ (left if Y is None else self._features(Y)).T)

    def _features(self, rows: ArrayLike) -> Array:
        logarithms = self.machine.log_kernel(rows)
        values = np.exp(logarithms - logarithms.max(1, keepdims=True))
        return np.asarray(values / np.linalg.norm(values, axis=1, keepdims=True))


@dataclass(frozen=True)
class KernelMachine:
    """h_r(x) = σ(Σ_l α_rl·K_θ(x, z_l)), written out: what a `SimNetClassifier` computes (section 3).

    templates z (n, d) in the units of the data, log_coefficients ln α (k, n), weights u (n, d), (1, d) or
    None for 1. K_θ standardises rows and templates with mean and scale.
    """

    kind: str
    p: float
    beta: float
    templates: Array
    weights: Array | None
    log_coefficients: Array
    mean: Array
    scale: Array
    classes: NDArray[Any]

    @property
    def coefficients(self) -> Array:
        """α = exp(β·b), (k, n), never negative."""
        return np.exp(self.log_coefficients)

    def log_kernel(self, X: ArrayLike) -> Array:
        """ln K_θ(x, z_l) = β·u_l·φ(x, z_l), (N, n)."""
        x, z = ((np.asarray(rows, dtype=np.float64) - self.mean) / self.scale for rows in (X, self.templates))
        u = None if self.weights is None else _tensor(np.broadcast_to(self.weights, z.shape))
        return (self.beta * similarity(_tensor(x), _tensor(z), u, self.p, kind=self.kind)).numpy()

    def kernel(self, X: ArrayLike) -> Array:
        """K_θ(x, z_l), (N, n)."""
        return np.exp(self.log_kernel(X))

    def activation(self, t: ArrayLike) -> Array:
        """σ(t) = (1/β)·ln(t/n)."""
        return np.asarray(np.log(np.asarray(t) / len(self.templates)) / self.beta)

    def outputs(self, X: ArrayLike) -> Array:
        """h (N, k). The sum is taken of logarithms, so kernels that underflow do no harm."""
        terms = self.log_kernel(X)[:, None, :] + self.log_coefficients
        return np.asarray((logsumexp(terms, axis=2) - np.log(len(self.templates))) / self.beta)

    def decision_function(self, X: ArrayLike) -> Array:
        """h (N, k); for two classes h_1 − h_0 (N,), as scikit-learn has it."""
        h = self.outputs(X)
        return np.asarray(h[:, 1] - h[:, 0]) if len(self.classes) == 2 else h

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """The class with the largest output."""
        return np.asarray(self.classes[self.outputs(X).argmax(1)])


# ---------------------------------------------------------------------- from SVC


def machine_from_svc(svc: Any, X: ArrayLike | None = None) -> KernelMachine:
    """The machine that decides as the SVC does, row by row.

    An SVC's sums f_r(x) = Σ_l a_rl·K(x, x_l) + a_r0 have coefficients of any sign, α = exp(β·b) has none.
    Only the largest f_r counts, and adding one function to all of them changes nothing:
    α_rl = a_rl − min_r a_rl ≥ 0 decides alike. The constant is a kernel too: weights 0 (linear similarity:
    template 0) make K = 1. Two classes are f_1 = f, f_0 = 0: positive coefficients go to class 1, negative
    ones to class 0. Decisions are the same, decision values are not: h_1 − h_0 =
    (1/β)·ln(Σ α_1·K / Σ α_0·K) where SVC has Σ (α_1 − α_0)·K.

    X: the rows that it was fitted to, needed with a callable kernel, of which SVC keeps no support vectors.
    """
    machines = _binary_machines(svc)
    kernel = _kernel_of(machines[0])  # the others are its clones, fitted to the same rows
    vectors = [_support_vectors(machine, X) for machine in machines]
    z, inverse = np.unique(np.concatenate(vectors), axis=0, return_inverse=True)
    signed = np.zeros((len(machines), len(z) + 1))
    ends = np.cumsum([len(rows) for rows in vectors])
    for row, machine, places in zip(signed, machines, np.split(inverse.ravel(), ends[:-1]), strict=True):
        np.add.at(row, places, np.asarray(machine.dual_coef_).ravel())
        row[-1] = machine.intercept_[0]
    if len(machines) == 1:
        signed = np.concatenate([np.zeros_like(signed), signed])
    with np.errstate(divide="ignore"):
        log_coefficients = np.log(signed - signed.min(0))
    weights = None if kernel.weights is None else kernel.weights[None]
    if kernel.kind == "lp":
        weights = np.tile(np.ones((1, z.shape[1])) if weights is None else weights, (len(z) + 1, 1))
        weights[-1] = 0.0
    return KernelMachine(
        kernel.kind,
        kernel.p,
        float(kernel.beta),
        np.concatenate([z, kernel.mean[None]]),
        weights,
        log_coefficients,
        kernel.mean,
        kernel.scale,
        svc.classes_,
    )


def _binary_machines(svc: Any) -> list[Any]:
    check_is_fitted(svc)
    if isinstance(svc, OneVsRestClassifier) and all(isinstance(m, SVC | NuSVC) for m in svc.estimators_):
        return list(svc.estimators_)
    if not isinstance(svc, SVC | NuSVC):
        raise SimNetsError(
            f"svc is a {type(svc).__name__}; expected SVC, NuSVC or OneVsRestClassifier of one. The value of "
            "another machine's sum has a sign, which the logarithm of a sum with α > 0 cannot carry; only "
            "comparisons between classes can be taken over"
        )
    if len(svc.classes_) > 2:
        raise SimNetsError(
            f"svc decides between {len(svc.classes_)} classes by the votes of pairs, and no sum per class "
            "decides alike; fit OneVsRestClassifier(SVC(…)), which compares one sum per class"
        )
    return [svc]


def _kernel_of(svc: Any) -> SimilarityKernel:
    kernel, d = svc.kernel, svc.shape_fit_[1]
    if isinstance(kernel, SimilarityKernel):
        return kernel
    if kernel in ("rbf", rbf_kernel, laplacian_kernel):
        p = 1.0 if kernel is laplacian_kernel else 2.0
        # SVC calls a function without gamma, which then is 1/d
        return SimilarityKernel("lp", p, svc._gamma if kernel == "rbf" else 1 / d, np.zeros(d), np.ones(d))
    given = kernel if isinstance(kernel, str) else getattr(kernel, "__name__", type(kernel).__name__)
    raise SimNetsError(
        f"svc has the kernel {given!r}, which is not exp(β·u·φ(x, z)); expected 'rbf', rbf_kernel, "
        "laplacian_kernel or the kernel() of a SimNetClassifier whose templates share their weights"
    )


def _support_vectors(svc: Any, X: ArrayLike | None) -> Array:
    if not callable(svc.kernel):
        return np.asarray(svc.support_vectors_, dtype=np.float64)
    if X is None:
        raise SimNetsError("X is missing: SVC with a callable kernel keeps no support vectors; give its rows")
    rows = check_array(X, dtype=np.float64)
    if rows.shape != svc.shape_fit_:
        raise SimNetsError(f"X has shape {rows.shape}; expected the rows of the SVC's fit, {svc.shape_fit_}")
    return np.asarray(rows[svc.support_])


# ---------------------------------------------------------------------- theorem 1


@dataclass(frozen=True)
class Theorem1:
    """smallest_eigenvalue: of the Gram matrix of exp(−c·Σ|x_i − y_i|^p), unit weights; ≥ 0 for p ≤ 2.
    asymmetry: largest |K(z_l, z_m) − K(z_m, z_l)| with each template's own weights.
    points, required: what K(o, o) must at least be, so that m points agree; it grows like m."""

    smallest_eigenvalue: float
    asymmetry: float
    points: tuple[int, ...]
    required: tuple[float, ...]


def theorem_1(
    d: int = 2, p: float = 2.0, c: float = 1.0, *, points: Sequence[int] = (1, 2, 4, 8, 16), seed: int = 0
) -> Theorem1:
    """Theorem 1 in numbers: unit weights are a kernel, weights that differ are none.

    Suppose K is a kernel with K([Z(x), U(x)], [z, u]) = exp(−c·Σ_i u_i·|x_i − z_i|^p) for all x, z, u; write
    a_x for [Z(x), U(x)]. With o = [z, 0] it says K(a_x, o) = 1 for every x. If U = 0 everywhere, all
    K(a_x, a_y) are 1, so all a_x are one point of the feature space, and nothing depends on x: false. If
    U(x_1) ≠ 0, K(a_x, a_{x_1}) tends to 0 as x = (t, …, t) goes to infinity; take such an x far out for x_2.
    By symmetry K < 1 needs U(x_2) ≠ 0 as well, and so on: m points, whose Gram matrix A is at most 1 on the
    diagonal and about 0 elsewhere. Then K(o, o) ≥ 1ᵀ·A⁻¹·1 ≥ about m (else the Gram matrix of
    a_{x_1} … a_{x_m}, o has a negative eigenvalue), for every m: there is no such number. `required` is
    1ᵀ·A⁻¹·1 for Z(x) = x and U = 1.

    >>> [round(bound) for bound in theorem_1().required]
    [1, 2, 4, 8, 16]
    """
    rng = np.random.default_rng(seed)
    x = _tensor(rng.normal(size=(40, d)))
    gram = torch.exp(c * similarity(x, x, None, p, method="fused"))
    own = torch.exp(c * similarity(x, x, _tensor(rng.exponential(size=(40, d))), p, method="fused"))
    far = (60.0 / c) ** (1 / p)  # exp(−60): as good as orthogonal
    required = []
    for m in points:
        line = far * torch.arange(m, dtype=torch.float64)[:, None].expand(m, d)
        a = torch.exp(c * similarity(line.contiguous(), line.contiguous(), None, p, method="fused"))
        required.append(float(torch.linalg.solve(a, torch.ones(m, dtype=torch.float64)).sum()))
    return Theorem1(
        float(torch.linalg.eigvalsh(gram)[0]),
        float((own - own.T).abs().max()),
        tuple(points),
        tuple(required),
    )
