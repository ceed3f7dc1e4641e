"""`SimNetClassifier`: SimNet MLP for tables, in scikit-learn's manner (section 3)."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.model_selection import train_test_split
from sklearn.utils import Tags, check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from simnets.errors import SimNetsError
from simnets.kernel_machine import KernelMachine, MultipleKernel, SimilarityKernel, machine_from_svc
from simnets.table_network import TableNetwork, Training, merged, pretrained

# Numbers (rows × templates) that a prediction holds at a time
_BLOCK = 1 << 22

Rows = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def _is(value: object, number: type) -> bool:
    """Whether value is such a number; True and False are none."""
    return isinstance(value, number) and not isinstance(value, bool)


class SimNetClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """h_r(x) = MEX_β{u_l·φ(x, z_l) + b_rl}_l: a kernel machine whose kernels and support vectors are learned.

    Templates z, weights u and order p start from a mixture of generalized Gaussians of the standardised rows
    (section 5), offsets b from the labels that each template meets; then all are trained with softmax loss.

    Args:
        similarity: "lp", φ = −|x − z|^p, or "linear", φ = x·z.
        p: order of the ℓp similarity, or "learned" (from 2).
        n_templates: n, at most the number of distinct rows; or "auto", as many as the mixture has components
            by the Bayesian information criterion (at most 128 and a quarter of the rows).
        weights: u is "learned" for each template, "shared" by all (then K_θ is one kernel), or "unit".
        beta: β > 0, or "learned".
        scaling: "features" divides each centred feature by its own standard deviation, "common" all by one
            (pixels, spectra), None leaves the rows as they are.
        missing_values: "error", or "marginalize": NaN is integrated out of the kernels of each row.
        alpha: strength of the penalty (1/n)·Σ_l |p·u_l∘z_l|², the squared slopes of the similarities.
        noise: standard deviation of Gaussian noise on the standardised rows while training; widens margins.
        dropout: share of the templates that each row does without, at random, in each step of training; they
            learn not to rely on each other. Needs more passes.
        max_iter: passes over the rows.
        batch_size: rows a step; "auto" is a quarter of them, at most 256.
        learning_rate: Adam's at its peak, which is after a tenth of training; it falls to 0 on a cosine.
        early_stopping: hold `validation_fraction` of the rows out, stop when their loss has not fallen by
            `tol` in `n_iter_no_change` passes, keep the parameters with the least.
        warm_start: `fit` goes on from the present parameters.
        random_state: seed of k-means, batches, noise, dropout, split. The order of the rows does not matter.
        verbose: print the loss now and then.

    Attributes: `classes_`, `n_features_in_`, `feature_names_in_`; `mean_` and `scale_` (d,), `templates_` z
    (n, d) in the units of the data; `weights_` u (n, d), (1, d) or None for 1, `p_`, `beta_` and `offsets_` b
    (k, n) in standardised ones; `loss_`, `loss_curve_`, `n_iter_`, `validation_losses_`.

    A sample weight of 2 is the same as the row twice, and one of 0 as no row. Predictions have X's precision,
    float32 or float64; with float32 they take half the time.

    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> SimNetClassifier(n_templates=10, random_state=0).fit(X, y).score(X, y) > 0.95
    True
    """

    classes_: NDArray[Any]
    loss_curve_: list[float]

    def __init__(
        self,
        similarity: str = "lp",
        p: float | str = "learned",
        n_templates: int | str = 32,
        weights: str = "learned",
        beta: float | str = "learned",
        *,
        scaling: str | None = "features",
        missing_values: str = "error",
        alpha: float = 1e-3,
        noise: float = 0.0,
        dropout: float = 0.0,
        max_iter: int = 100,
        batch_size: int | str = "auto",
        learning_rate: float = 0.02,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 20,
        tol: float = 1e-4,
        warm_start: bool = False,
        random_state: int | np.random.RandomState | None = None,
        verbose: bool | int = False,
    ) -> None:
        self.similarity = similarity
        self.p = p
        self.n_templates = n_templates
        self.weights = weights
        self.beta = beta
        self.scaling = scaling
        self.missing_values = missing_values
        self.alpha = alpha
        self.noise = noise
        self.dropout = dropout
        self.max_iter = max_iter
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.tol = tol
        self.warm_start = warm_start
        self.random_state = random_state
        self.verbose = verbose

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = self.missing_values == "marginalize"
        return tags

    # ------------------------------------------------------------------ training

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Pre-train and train on rows X (N, d) with labels y."""
        self._check_parameters()
        again = self.warm_start and hasattr(self, "templates_")
        rows, labels, weights = self._checked(X, y, sample_weight, reset=not again)
        classes, codes = np.unique(labels, return_inverse=True)
        if again and not np.array_equal(classes, self.classes_):
            raise SimNetsError(
                f"y has the classes {classes.tolist()}, the warm start has {self.classes_.tolist()}; "
                "they must be the same: use a new classifier"
            )
        rows, codes, weights = merged(rows, codes, weights)
        self._check_classes(codes)
        self.classes_ = classes
        rng = check_random_state(self.random_state)
        if not again:
            self._standardise(rows, weights)
        held_out: Rows | None = None
        if self.early_stopping:
            parts = train_test_split(
                rows, codes, weights, test_size=self.validation_fraction, stratify=codes, random_state=rng
            )
            held_out = self._tensors(*parts[1::2])
            rows, codes, weights = parts[::2]
        data = self._tensors(rows, codes, weights)
        network = self._trainable() if again else self._start(data, rng)
        self._train(network, data, held_out, rng)
        return self

    def partial_fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        classes: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> Self:
        """One pass over a batch of a stream, at a constant rate; the first needs the list of all `classes`.

        The first batch also standardises and pre-trains, so it should look like the others.
        """
        self._check_parameters()
        first = not hasattr(self, "templates_")
        if first and classes is None:
            raise SimNetsError("classes must be given to the first call of partial_fit: all labels to come")
        rows, labels, weights = self._checked(X, y, sample_weight, reset=first)
        if first:
            self.classes_ = np.unique(np.asarray(classes))
            if len(self.classes_) < 2:
                raise SimNetsError(f"classes has {len(self.classes_)} class; a classifier needs at least 2")
        elif classes is not None and not np.array_equal(np.unique(np.asarray(classes)), self.classes_):
            raise SimNetsError(f"classes={classes!r} is not that of the first call, {self.classes_.tolist()}")
        if unknown := sorted(set(labels.tolist()) - set(self.classes_.tolist())):
            raise SimNetsError(f"y has the labels {unknown}, which are not in classes")
        rows, codes, weights = merged(rows, np.searchsorted(self.classes_, labels), weights)
        rng = check_random_state(self.random_state)
        if first:
            self._standardise(rows, weights)
            self.n_iter_, self.loss_curve_, self._moments = 0, [], None
        data = self._tensors(rows, codes, weights)
        network = self._start(data, rng) if first else self._trainable()
        # a seed of its own for each call, or all batches would be shuffled alike
        training = self._training(network, int(rng.randint(2**31 - 1)) + self.n_iter_, self._moments)
        self.loss_curve_.append(training.epoch(*data, self._batch(len(rows))))
        self._moments = training.moments
        self.n_iter_ += 1
        self._keep(network)
        return self

    def _checked(
        self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None, *, reset: bool
    ) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.float64]]:
        rows, labels = validate_data(
            self, X, y, dtype=[np.float64, np.float32], ensure_all_finite=self._finite(), reset=reset
        )
        check_classification_targets(labels)
        weights = _check_sample_weight(sample_weight, rows, dtype=np.float64, ensure_non_negative=True)
        return rows, labels, weights

    def _finite(self) -> bool | str:
        return "allow-nan" if self.missing_values == "marginalize" else True

    def _check_classes(self, codes: NDArray[np.int64]) -> None:
        present = len(np.unique(codes))
        if present < 2:
            raise SimNetsError(
                f"y has {present} class (among the rows with a weight above 0); a classifier needs at least 2"
            )

    def _check_parameters(self) -> None:
        value: Any
        for name, allowed in (
            ("similarity", ("lp", "linear")),
            ("weights", ("learned", "shared", "unit")),
            ("scaling", ("features", "common", None)),
            ("missing_values", ("error", "marginalize")),
        ):
            value = getattr(self, name)
            if value not in allowed:
                raise SimNetsError(f"{name}={value!r}; expected one of {', '.join(map(repr, allowed))}")
        for name, least, most, word in (
            ("p", 0, math.inf, "learned"),
            ("beta", 0, math.inf, "learned"),
            ("learning_rate", 0, math.inf, None),
            ("validation_fraction", 0, 1, None),
        ):
            value = getattr(self, name)
            if word is not None and isinstance(value, str) and value == word:
                continue
            if not _is(value, Real) or not least < value < most:
                other = "" if word is None else f", or {word!r}"
                raise SimNetsError(
                    f"{name}={value!r}; expected a number above {least} and below {most}{other}"
                )
        for name in ("alpha", "noise", "tol"):
            value = getattr(self, name)
            if not _is(value, Real) or not 0 <= value < math.inf:
                raise SimNetsError(f"{name}={value!r}; expected a number ≥ 0")
        if not _is(self.dropout, Real) or not 0 <= self.dropout < 1:
            raise SimNetsError(f"dropout={self.dropout!r}; expected a share from 0 up to, not with, 1")
        for name, word in (
            ("n_templates", "auto"),
            ("batch_size", "auto"),
            ("max_iter", None),
            ("n_iter_no_change", None),
        ):
            value = getattr(self, name)
            if word is not None and isinstance(value, str) and value == word:
                continue
            if not _is(value, Integral) or value < 1:
                other = "" if word is None else f", or {word!r}"
                raise SimNetsError(f"{name}={value!r}; expected a whole number ≥ 1{other}")

    def _standardise(self, rows: NDArray[Any], weights: NDArray[np.float64]) -> None:
        d = rows.shape[1]
        self.mean_, self.scale_ = np.zeros(d), np.ones(d)
        if self.scaling is None:
            return
        known = ~np.isnan(rows)
        values = np.where(known, rows, 0.0).astype(np.float64)
        shares = known * weights[:, None]
        totals = np.maximum(shares.sum(0), np.finfo(float).tiny)
        self.mean_ = (shares * values).sum(0) / totals
        variance = (shares * (values - self.mean_) ** 2).sum(0) / totals
        # what rounding leaves of a constant column is no variance
        variance[variance <= (1e-7 * np.abs(self.mean_)) ** 2] = 0.0
        if self.scaling == "common":
            variance[:] = variance.mean()
        self.scale_ = np.where(variance > 0, np.sqrt(variance), 1.0)

    def _tensors(self, rows: NDArray[Any], codes: NDArray[np.int64], weights: NDArray[np.float64]) -> Rows:
        """Standardised rows, labels as numbers, and weights of mean 1."""
        x = ((rows - self.mean_) / self.scale_).astype(np.float32)
        shares = (weights / weights.mean()).astype(np.float32)
        return torch.from_numpy(x), torch.from_numpy(codes.astype(np.int64)), torch.from_numpy(shares)

    def _start(self, data: Rows, rng: np.random.RandomState) -> TableNetwork:
        return pretrained(
            *data,
            classes=len(self.classes_),
            n_templates=None if self.n_templates == "auto" else int(self.n_templates),
            kind=self.similarity,
            weights=self.weights,
            p=None if self.p == "learned" else float(self.p),
            beta=None if self.beta == "learned" else float(self.beta),
            seed=int(rng.randint(2**31 - 1)),
        )

    def _training(self, network: TableNetwork, seed: int, moments: Any = None) -> Training:
        return Training(
            network,
            learning_rate=float(self.learning_rate),
            alpha=float(self.alpha),
            noise=float(self.noise),
            dropout=float(self.dropout),
            generator=torch.Generator().manual_seed(seed),
            moments=moments,
        )

    def _batch(self, count: int) -> int:
        return min(-(-count // 4), 256) if self.batch_size == "auto" else min(int(self.batch_size), count)

    def _train(
        self, network: TableNetwork, data: Rows, held_out: Rows | None, rng: np.random.RandomState
    ) -> None:
        training = self._training(network, int(rng.randint(2**31 - 1)))
        self.loss_curve_ = []
        if held_out is not None:
            self.validation_losses_: list[float] = []
        least, since, best = math.inf, 0, network.state_dict()
        for done in range(self.max_iter):
            self.n_iter_ = done + 1
            span = (done / self.max_iter, self.n_iter_ / self.max_iter)
            self.loss_curve_.append(training.epoch(*data, self._batch(len(data[0])), span))
            if held_out is not None:
                self.validation_losses_.append(training.loss(*held_out))
                since += 1
                if self.validation_losses_[-1] < least - self.tol:
                    least, since = self.validation_losses_[-1], 0
                    best = {name: value.clone() for name, value in network.state_dict().items()}
            stopped = since >= self.n_iter_no_change
            if self.verbose and (stopped or self.n_iter_ % max(1, self.max_iter // 10) == 0):
                held = "" if held_out is None else f", validation loss {self.validation_losses_[-1]:.4f}"
                print(f"pass {self.n_iter_}/{self.max_iter}: loss {self.loss_curve_[-1]:.4f}{held}")
            if stopped:
                break
        if held_out is not None:
            network.load_state_dict(best)
        self._moments = training.moments
        self._keep(network)

    def _keep(self, network: TableNetwork) -> None:
        """The paper's parameters as arrays: u = λ·g, b = λ·c, β = 1/λ."""
        arrays = {name: value.detach().double().numpy() for name, value in network.named_parameters()}
        # −∞ is a logarithm of 0, which the constant template of an SVC has
        if any(np.isnan(array).any() or np.isposinf(array).any() for array in arrays.values()):
            raise SimNetsError(
                "training left the finite numbers; lower learning_rate or let scaling='features' scale X"
            )
        scale = math.exp(arrays["log_scale"])
        self.loss_ = self.loss_curve_[-1]
        self.beta_ = 1 / scale
        self.p_ = network.p if isinstance(network.p, float) else float(network.p.detach())
        self.kind_ = network.kind
        self.templates_ = self.mean_ + self.scale_ * arrays["templates"]
        self.weights_ = scale * np.exp(arrays["log_g"]) if "log_g" in arrays else None
        self.offsets_ = scale * arrays["offsets"]

    def _network(self, dtype: torch.dtype, learned: tuple[str, ...] = ()) -> TableNetwork:
        def tensor(array: NDArray[np.float64]) -> torch.Tensor:
            return torch.from_numpy(np.ascontiguousarray(array)).to(dtype)

        with np.errstate(divide="ignore"):  # the weights of a constant template are 0
            log_g = None if self.weights_ is None else tensor(np.log(self.beta_ * self.weights_))
        z, c = tensor((self.templates_ - self.mean_) / self.scale_), tensor(self.beta_ * self.offsets_)
        return TableNetwork(self.kind_, z, log_g, c, -math.log(self.beta_), self.p_, learned)

    def _trainable(self) -> TableNetwork:
        """The fitted network, to go on with."""
        learned = ["templates", "offsets", "log_g"]
        learned += ["log_scale"] if self.beta == "learned" else []
        learned += ["log_p"] if self.p == "learned" and self.kind_ == "lp" else []
        return self._network(torch.float32, tuple(learned))

    # ------------------------------------------------------------------ use

    def _outputs(self, X: ArrayLike) -> torch.Tensor:
        check_is_fitted(self)
        rows = validate_data(
            self, X, dtype=[np.float64, np.float32], ensure_all_finite=self._finite(), reset=False
        )
        x = (rows - self.mean_.astype(rows.dtype)) / self.scale_.astype(rows.dtype)
        x = torch.from_numpy(np.ascontiguousarray(x))
        with torch.inference_mode():
            network = self._network(x.dtype)
            blocks = torch.split(x, max(1, _BLOCK // len(self.templates_)))
            return torch.cat([network(block) for block in blocks])

    def decision_function(self, X: ArrayLike) -> NDArray[Any]:
        """h (N, k); for two classes h_1 − h_0 (N,)."""
        h = self._outputs(X)
        return (h[:, 1] - h[:, 0] if len(self.classes_) == 2 else h).numpy()

    def predict_proba(self, X: ArrayLike) -> NDArray[Any]:
        """softmax(h), (N, k)."""
        return torch.softmax(self._outputs(X), 1).numpy()

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """The class with the largest h."""
        largest = self._outputs(X).argmax(1).numpy()
        return np.asarray(self.classes_[largest])

    # ------------------------------------------------------------------ the kernel view

    def to_kernel_machine(self) -> KernelMachine:
        """The same classifier as σ(Σ_l α_rl·K_θ(x, z_l)), α = exp(β·b) (section 3)."""
        check_is_fitted(self)
        return KernelMachine(
            self.kind_,
            self.p_,
            self.beta_,
            self.templates_,
            self.weights_,
            self.beta_ * self.offsets_,
            self.mean_,
            self.scale_,
            self.classes_,
        )

    def kernel(self) -> SimilarityKernel | MultipleKernel:
        """The kernel K(X, Y) that the network has learned, for `SVC(kernel=…)`.

        Unit or shared weights: exponential, RBF, Laplacian or generalized Gaussian, on standardised features.
        Weights of each template's own: the multiple kernel, since there is no single one (theorem 1).
        """
        check_is_fitted(self)
        if self.weights_ is not None and len(self.weights_) > 1:
            return MultipleKernel(self.to_kernel_machine())
        weights = None if self.weights_ is None else self.weights_[0]
        return SimilarityKernel(self.kind_, self.p_, self.beta_, self.mean_, self.scale_, weights)

    @classmethod
    def from_kernel_machine(cls, svc: Any, X: ArrayLike | None = None) -> Self:
        """A fitted classifier that decides as an SVC does: see `simnets.kernel_machine.machine_from_svc`."""
        machine = machine_from_svc(svc, X)
        weights = "unit" if machine.weights is None else "shared" if len(machine.weights) == 1 else "learned"
        classifier = cls(machine.kind, machine.p, len(machine.templates), weights, machine.beta, scaling=None)
        classifier.kind_, classifier.p_, classifier.beta_ = machine.kind, machine.p, machine.beta
        classifier.templates_, classifier.weights_ = machine.templates, machine.weights
        classifier.offsets_ = machine.log_coefficients / machine.beta
        classifier.mean_, classifier.scale_ = machine.mean, machine.scale
        classifier.classes_ = machine.classes
        classifier.n_features_in_ = machine.templates.shape[1]
        if hasattr(svc, "feature_names_in_"):
            classifier.feature_names_in_ = svc.feature_names_in_
        classifier.n_iter_, classifier.loss_curve_, classifier._moments = 0, [], None
        return classifier
