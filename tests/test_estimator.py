"""`SimNetClassifier`: scikit-learn's own contract, and what it does not check."""

import math

import numpy as np
import pytest
import torch
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_iris, load_wine, make_classification, make_moons
from sklearn.exceptions import NotFittedError
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import simnets
from simnets import SimNetClassifier, SimNetsError
from simnets.table_network import TableNetwork, Training

SHORT = {"n_templates": 8, "max_iter": 15, "random_state": 0}


@parametrize_with_checks([SimNetClassifier(max_iter=10)])
def test_whole_contract_of_scikit_learn(estimator, check) -> None:
    check(estimator)


@pytest.mark.parametrize("similarity", ["lp", "linear"])
@pytest.mark.parametrize("weights", ["learned", "shared", "unit"])
def test_every_form_learns(similarity: str, weights: str) -> None:
    X, y = make_moons(200, noise=0.1, random_state=0)
    classifier = SimNetClassifier(similarity, weights=weights, n_templates=12, max_iter=40, random_state=0)
    assert classifier.fit(X[:100], y[:100]).score(X[100:], y[100:]) > 0.93


def test_training_improves_on_its_start() -> None:
    X, y = load_wine(return_X_y=True)
    classifier = SimNetClassifier(**SHORT).fit(X[::2], y[::2])
    assert classifier.loss_curve_[-1] < 0.5 * classifier.loss_curve_[0]
    assert classifier.score(X[1::2], y[1::2]) > 0.93


def test_units_of_the_features_do_not_matter() -> None:
    X, y = load_iris(return_X_y=True)
    scaled = X * [1e6, 1e-6, 1, 1] + [1e7, 0, -5, 0]
    one, other = (SimNetClassifier(**SHORT).fit(data, y) for data in (X, scaled))
    # batches differ, since the order of the rows is one of their numbers; the classifier is about the same
    assert np.abs(one.predict_proba(X) - other.predict_proba(scaled)).mean() < 0.03
    assert other.score(scaled, y) > 0.95
    np.testing.assert_allclose(other.mean_, scaled.mean(0), rtol=1e-9)


@pytest.mark.parametrize("shape", [(6, 2), (12, 200), (30, 1)])
def test_odd_tables(shape: tuple[int, int]) -> None:
    """Few rows, many features, one feature, a constant one."""
    X = np.random.default_rng(0).normal(size=shape)
    y = np.arange(shape[0]) % 2
    X[:, 0] += 6 * y
    X = np.column_stack([X, np.full(len(X), 0.1)])
    assert SimNetClassifier(**SHORT).fit(X, y).score(X, y) == 1.0


def test_labels_of_any_kind_and_probabilities() -> None:
    X, y = load_iris(return_X_y=True)
    names = np.array(["setosa", "versicolor", "virginica"])[y]
    classifier = SimNetClassifier(**SHORT).fit(X, names)
    assert classifier.classes_.tolist() == ["setosa", "versicolor", "virginica"]
    h = classifier.decision_function(X)
    expected = np.exp(h) / np.exp(h).sum(1, keepdims=True)
    np.testing.assert_allclose(classifier.predict_proba(X), expected, rtol=1e-9)
    np.testing.assert_array_equal(classifier.predict(X), classifier.classes_[h.argmax(1)])


def test_precision_is_that_of_the_rows() -> None:
    X, y = load_iris(return_X_y=True)
    classifier = SimNetClassifier(**SHORT).fit(X, y)
    single, double = classifier.decision_function(X.astype(np.float32)), classifier.decision_function(X)
    assert (single.dtype, double.dtype) == (np.float32, np.float64)
    np.testing.assert_allclose(single, double, atol=1e-3)


def test_order_of_rows_does_not_matter_and_weights_do() -> None:
    X, y = make_moons(80, noise=0.3, random_state=0)
    shuffled = np.random.default_rng(0).permutation(80)
    classifier = SimNetClassifier(**SHORT).fit(X, y)
    again = SimNetClassifier(**SHORT).fit(X[shuffled], y[shuffled])
    np.testing.assert_array_equal(classifier.templates_, again.templates_)
    weighted = SimNetClassifier(**SHORT).fit(X, y, sample_weight=np.where(y == 1, 20.0, 1.0))
    assert weighted.predict(X).sum() > classifier.predict(X).sum()


def test_number_of_templates_from_the_data() -> None:
    rng = np.random.default_rng(0)
    centres = np.array([[0, 0], [9, 0], [0, 9], [9, 9], [20, 20]])
    part = rng.integers(0, 5, 300)
    X, y = rng.normal(size=(300, 2)) + centres[part], part % 2
    classifier = SimNetClassifier(n_templates="auto", max_iter=5, random_state=0).fit(X, y)
    assert len(classifier.templates_) == 5
    assert SimNetClassifier(n_templates=50, max_iter=1).fit(X[:20], y[:20]).templates_.shape == (20, 2)


def test_missing_values_are_integrated_out() -> None:
    rng = np.random.default_rng(0)
    X, y = make_classification(200, 6, n_informative=4, random_state=0)
    holes = X.copy()
    holes[rng.random(X.shape) < 0.15] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        SimNetClassifier(**SHORT).fit(holes, y)
    classifier = SimNetClassifier(missing_values="marginalize", p=2.0, **SHORT).fit(holes[:150], y[:150])
    assert classifier.score(holes[150:], y[150:]) > 0.75
    # against the integral of exp(β·h_r) over the missing coordinate, done numerically
    row = X[:1].copy()
    row[0, 2] = np.nan
    grid = np.repeat(X[:1], 4001, axis=0)
    grid[:, 2] = np.linspace(-60, 60, 4001) * classifier.scale_[2]
    h = classifier.beta_ * classifier.to_kernel_machine().outputs(grid)
    integral = np.log(np.exp(h - h.max()).sum(0)) / classifier.beta_
    assert classifier.decision_function(row)[0] == pytest.approx(integral[1] - integral[0], rel=1e-6)


def test_partial_fit_learns_from_a_stream() -> None:
    X, y = make_moons(600, noise=0.15, random_state=0)
    classifier = SimNetClassifier(n_templates=12, random_state=0)
    with pytest.raises(SimNetsError, match="classes must be given"):
        classifier.partial_fit(X[:50], y[:50])
    classifier.partial_fit(X[:100], y[:100], classes=[0, 1])
    first = classifier.loss_curve_[-1]
    for start in [*range(100, 500, 100)] * 6:
        classifier.partial_fit(X[start : start + 100], y[start : start + 100])
    assert classifier.n_iter_ == 25
    assert classifier.loss_curve_[-1] < first
    assert classifier.score(X[500:], y[500:]) > 0.93
    with pytest.raises(SimNetsError, match="not in classes"):
        classifier.partial_fit(X[:50], y[:50] + 7)


def test_dropout_leaves_templates_out_for_a_row() -> None:
    generator = torch.Generator().manual_seed(0)
    x, z, c = (torch.randn(shape, generator=generator) for shape in ((5, 3), (4, 3), (2, 4)))
    network = TableNetwork("lp", z, torch.zeros(4, 3), c, 0.7, 2.0, ("templates",))
    kept = torch.tensor([1, 0, 1, 1]).bool()
    smaller = TableNetwork("lp", z[kept], torch.zeros(3, 3), c[:, kept], 0.7, 2.0)
    shift = math.exp(0.7) * math.log(3 / 4)  # MEX takes the mean over all four, which no class gains from
    scores = network(x, kept.expand(5, 4))
    torch.testing.assert_close(scores, smaller(x) + shift)
    scores.sum().backward()
    assert network.templates.grad[~kept].eq(0).all()
    assert network.templates.grad[kept].ne(0).all()

    training = Training(network, learning_rate=0.1, alpha=0, noise=0, dropout=0.9, generator=generator)
    drawn = training._kept(2_000)
    assert drawn.any(1).all(), "a row without templates has no score"
    lost_all = drawn.all(1).float().mean()
    assert 0.6 < lost_all < 0.71  # 0.9⁴ = 0.656 have lost all, and got them back


def test_dropout_repeats_with_its_seed() -> None:
    X, y = load_iris(return_X_y=True)
    first, again = (SimNetClassifier(**SHORT, dropout=0.3).fit(X, y) for _ in range(2))
    np.testing.assert_array_equal(first.templates_, again.templates_)
    assert (first.templates_ != SimNetClassifier(**SHORT).fit(X, y).templates_).any()


def test_warm_start_goes_on() -> None:
    X, y = load_iris(return_X_y=True)
    classifier = SimNetClassifier(**SHORT, warm_start=True).fit(X, y)
    first = classifier.loss_curve_
    classifier.fit(X, y)
    assert classifier.loss_curve_[0] < first[0]
    with pytest.raises(SimNetsError, match="warm start"):
        classifier.fit(X, np.where(y == 2, 5, y))


def test_early_stopping_keeps_the_best() -> None:
    X, y = make_moons(150, noise=0.4, random_state=0)
    classifier = SimNetClassifier(
        n_templates=30, max_iter=200, early_stopping=True, validation_fraction=0.3, n_iter_no_change=5,
        alpha=0.0, learning_rate=0.05, random_state=0,
    ).fit(X, y)  # fmt: skip
    losses = classifier.validation_losses_
    assert classifier.n_iter_ == len(losses) < 200
    assert min(losses) < losses[-1]
    # the rows held out are among these, so the least of their losses is near that of the kept parameters
    assert log_loss(y, classifier.predict_proba(X)) < losses[-1]


def test_verbose_prints_progress(capsys: pytest.CaptureFixture[str]) -> None:
    X, y = load_iris(return_X_y=True)
    SimNetClassifier(n_templates=4, max_iter=4, verbose=True).fit(X, y)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert lines[-1].startswith("pass 4/4: loss ")


def test_pipeline_grid_search_and_calibration() -> None:
    X, y = load_iris(return_X_y=True)
    pipeline = make_pipeline(StandardScaler(), SimNetClassifier(max_iter=5, random_state=0))
    search = GridSearchCV(pipeline, {"simnetclassifier__n_templates": [1, 6]}, cv=2).fit(X, y)
    assert search.best_params_["simnetclassifier__n_templates"] == 6
    calibrated = CalibratedClassifierCV(SimNetClassifier(n_templates=6, max_iter=5, random_state=0), cv=2)
    assert calibrated.fit(X, y).score(X, y) > 0.9


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("similarity", "cosine"), ("p", 0), ("p", "two"), ("n_templates", 0), ("n_templates", 2.5),
        ("n_templates", "many"), ("weights", None), ("beta", -1.0), ("beta", float("nan")), ("scaling", 1),
        ("missing_values", "drop"), ("alpha", -1), ("noise", "some"), ("max_iter", 0), ("batch_size", True),
        ("dropout", 1.0), ("dropout", "half"),
        ("learning_rate", 0.0), ("validation_fraction", 1.0), ("n_iter_no_change", 0), ("tol", None),
    ],
)  # fmt: skip
def test_bad_parameters(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"^{name}="):
        SimNetClassifier(**{name: value}).fit([[0.0], [1.0]], [0, 1])


def test_bad_data() -> None:
    X, y = load_iris(return_X_y=True)
    classifier = SimNetClassifier(**SHORT)
    with pytest.raises(NotFittedError):
        classifier.predict(X)
    with pytest.raises(NotFittedError):
        classifier.kernel()
    for rows, labels, weights, message in (
        (X[:, 0], y, None, "Expected 2D array"),
        (X, y[:-1], None, "inconsistent numbers of samples"),
        (X, np.zeros(150), None, "1 class"),
        (X, y + 0.5, None, "Unknown label type"),
        (X, y, -np.ones(150), "Negative values"),
        (X, y, np.zeros(150), "zero"),
        (X, y, (y == 1).astype(float), "1 class"),
        (np.full((3, 2), "a"), [0, 1, 1], None, "could not convert string"),
    ):
        with pytest.raises(ValueError, match=message):
            classifier.fit(rows, labels, sample_weight=weights)
    with pytest.raises(ValueError, match="4 features"):
        classifier.fit(X, y).predict(X[:, :3])


def test_public_name() -> None:
    assert simnets.SimNetClassifier is SimNetClassifier
    assert "SimNetClassifier" in simnets.__all__
