"""SimNet MLP as a kernel machine, against scikit-learn's kernels and machines (section 3)."""

import numpy as np
import pytest
from scipy.spatial.distance import cdist
from sklearn.datasets import load_iris, make_moons
from sklearn.exceptions import NotFittedError
from sklearn.metrics.pairwise import laplacian_kernel, polynomial_kernel, rbf_kernel
from sklearn.multiclass import OneVsRestClassifier
from sklearn.svm import SVC, SVR, NuSVC

from simnets import SimNetClassifier, SimNetsError
from simnets.kernel_machine import KernelMachine, theorem_1

X, Y = load_iris(return_X_y=True)
SHORT = {"n_templates": 6, "max_iter": 4, "random_state": 0}


def exponential(x: np.ndarray, y: np.ndarray, beta: float) -> np.ndarray:
    return np.exp(beta * x @ y.T)


def generalized_gaussian(x: np.ndarray, y: np.ndarray, beta: float) -> np.ndarray:
    return np.exp(-beta * cdist(x, y, "minkowski", p=1.5) ** 1.5)


@pytest.mark.parametrize(
    ("options", "name", "expected"),
    [
        ({"p": 2.0}, "rbf", rbf_kernel),
        ({"p": 1.0}, "laplacian", laplacian_kernel),
        ({"p": 1.5}, "generalized gaussian", generalized_gaussian),
        ({"similarity": "linear"}, "exponential", exponential),
    ],
)
def test_unit_weights_give_the_named_kernel(options: dict, name: str, expected) -> None:
    classifier = SimNetClassifier(weights="unit", scaling=None, **options, **SHORT).fit(X, Y)
    kernel = classifier.kernel()
    assert kernel.name == name
    np.testing.assert_allclose(kernel(X[:9], X), expected(X[:9], X, classifier.beta_), rtol=1e-6, atol=1e-12)


def test_shared_weights_and_scaling_are_widths_of_the_features() -> None:
    classifier = SimNetClassifier(weights="shared", p=2.0, **SHORT).fit(X, Y)
    widths = np.sqrt(classifier.weights_[0]) / classifier.scale_
    expected = rbf_kernel(X * widths, X * widths, gamma=classifier.beta_)
    np.testing.assert_allclose(classifier.kernel()(X), expected, rtol=1e-9)


@pytest.mark.parametrize("similarity", ["lp", "linear"])
@pytest.mark.parametrize("weights", ["learned", "shared", "unit"])
@pytest.mark.parametrize("scaling", ["features", None])
def test_kernel_machine_is_the_network(similarity: str, weights: str, scaling: str | None) -> None:
    classifier = SimNetClassifier(similarity, weights=weights, scaling=scaling, **SHORT).fit(X, Y)
    machine = classifier.to_kernel_machine()
    h = classifier.decision_function(X)
    np.testing.assert_allclose(machine.decision_function(X), h, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(machine.predict(X), classifier.predict(X))
    # the formula as it stands: σ(Σ α·K)
    np.testing.assert_allclose(machine.coefficients, np.exp(classifier.beta_ * classifier.offsets_))
    literal = machine.activation(machine.kernel(X) @ machine.coefficients.T)
    np.testing.assert_allclose(literal, h, rtol=1e-5, atol=1e-5)


def test_kernel_machine_of_two_classes() -> None:
    classifier = SimNetClassifier(**SHORT).fit(X[:100], Y[:100])
    expected = classifier.decision_function(X)
    assert expected.shape == (150,)
    np.testing.assert_allclose(classifier.to_kernel_machine().decision_function(X), expected, atol=1e-5)


@pytest.mark.parametrize("weights", ["learned", "shared", "unit"])
def test_learned_kernels_serve_an_svc(weights: str) -> None:
    classifier = SimNetClassifier(weights=weights, p=1.5, **SHORT).fit(X[::2], Y[::2])
    kernel = classifier.kernel()
    gram = kernel(X)
    np.testing.assert_allclose(np.diag(gram), 1.0)
    np.testing.assert_allclose(gram, gram.T, atol=1e-12)
    assert np.linalg.eigvalsh(gram)[0] > -1e-9
    assert SVC(kernel=kernel, C=10).fit(X[::2], Y[::2]).score(X[1::2], Y[1::2]) > 0.9


def test_multiple_kernel_is_the_feature_space_of_the_network() -> None:
    """The outputs are linear in ψ: α·K(x, z) is recovered from ψ(x) up to the factor of each row."""
    classifier = SimNetClassifier(**SHORT).fit(X, Y)
    kernel, machine = classifier.kernel(), classifier.to_kernel_machine()
    assert kernel.name == "multiple"
    values = machine.kernel(X)
    unit = values / np.linalg.norm(values, axis=1, keepdims=True)
    np.testing.assert_allclose(kernel(X[:5], X), unit[:5] @ unit.T, rtol=1e-9)
    assert (machine.classes[(unit @ machine.coefficients.T).argmax(1)] == classifier.predict(X)).all()


@pytest.mark.parametrize(
    "svc",
    [
        SVC(C=5.0),
        SVC(kernel="rbf", gamma=0.7, class_weight={0: 3}),
        NuSVC(nu=0.2),
        SVC(kernel=laplacian_kernel),
        SVC(kernel=rbf_kernel),
    ],
)
def test_binary_svc_decides_alike(svc) -> None:
    rows, labels = make_moons(300, noise=0.25, random_state=0)
    svc.fit(rows[:150], labels[:150])
    assert (svc.dual_coef_ > 0).any()
    assert (svc.dual_coef_ < 0).any()
    classifier = SimNetClassifier.from_kernel_machine(svc, rows[:150])
    np.testing.assert_array_equal(classifier.predict(rows), svc.predict(rows))
    # exp(β·h) are the two sums whose difference the SVC takes
    sums = np.exp(classifier.beta_ * classifier.to_kernel_machine().outputs(rows)) * len(
        classifier.templates_
    )
    np.testing.assert_allclose(sums[:, 1] - sums[:, 0], svc.decision_function(rows), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("similarity", ["lp", "linear"])
@pytest.mark.parametrize("weights", ["shared", "unit"])
def test_svc_with_the_kernel_of_a_network_comes_back(similarity: str, weights: str) -> None:
    first = SimNetClassifier(similarity, weights=weights, **SHORT).fit(X, Y)
    svc = OneVsRestClassifier(SVC(kernel=first.kernel())).fit(X, Y)
    classifier = SimNetClassifier.from_kernel_machine(svc, X)
    np.testing.assert_array_equal(classifier.predict(X), svc.predict(X))


def test_one_against_rest_decides_alike() -> None:
    svc = OneVsRestClassifier(SVC(gamma=0.5)).fit(X, np.array(["a", "b", "c"])[Y])
    classifier = SimNetClassifier.from_kernel_machine(svc)
    assert classifier.classes_.tolist() == ["a", "b", "c"]
    np.testing.assert_array_equal(classifier.predict(X), svc.predict(X))
    # it can be trained further
    classifier.set_params(warm_start=True, max_iter=3).fit(X, np.array(["a", "b", "c"])[Y])
    assert classifier.score(X, np.array(["a", "b", "c"])[Y]) > 0.9


@pytest.mark.parametrize(
    ("svc", "message"),
    [
        (SVC(), "votes of pairs"),
        (OneVsRestClassifier(SVC(kernel="poly")), "kernel 'poly'"),
        (OneVsRestClassifier(SVC(kernel=polynomial_kernel)), "kernel 'polynomial_kernel'"),
        (OneVsRestClassifier(SVC(kernel=rbf_kernel)), "X is missing"),
        (SVR(), "sign"),
    ],
)
def test_what_cannot_be_taken_over_says_why(svc, message: str) -> None:
    with pytest.raises(SimNetsError, match=message):
        SimNetClassifier.from_kernel_machine(svc.fit(X, Y))


def test_an_svc_must_be_fitted() -> None:
    with pytest.raises(NotFittedError):
        SimNetClassifier.from_kernel_machine(SVC())
    with pytest.raises(SimNetsError, match="shape"):
        SimNetClassifier.from_kernel_machine(SVC(kernel=rbf_kernel).fit(X[:100], Y[:100]), X)


@pytest.mark.parametrize("p", [0.5, 1.0, 1.5, 2.0])
@pytest.mark.parametrize("d", [1, 3])
def test_theorem_1_in_numbers(d: int, p: float) -> None:
    found = theorem_1(d, p)
    assert found.smallest_eigenvalue > -1e-12
    assert found.asymmetry > 0.1
    np.testing.assert_allclose(found.required, found.points, rtol=1e-6)


def test_unit_weights_are_no_kernel_above_order_two() -> None:
    assert theorem_1(1, 4.0).smallest_eigenvalue < -1e-3


def test_weights_of_their_own_leave_no_symmetric_gram_matrix() -> None:
    """Between templates of a trained network, K_θ(z_l, z_m) ≠ K_θ(z_m, z_l), unless they share weights."""
    gaps = {}
    for weights in ("learned", "shared"):
        machine: KernelMachine = SimNetClassifier(weights=weights, **SHORT).fit(X, Y).to_kernel_machine()
        logarithms = machine.log_kernel(machine.templates)
        gaps[weights] = np.abs(logarithms - logarithms.T).max()
    assert gaps["learned"] > 0.1 > 1e-9 > gaps["shared"]
