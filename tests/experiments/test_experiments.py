"""Experiments on the embedded digits, from images to table; and the committed results."""

import io
import json
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console

import simnets
from simnets import experiments
from simnets.cli import main
from simnets.errors import SimNetsError
from simnets.experiments import (
    EXPERIMENTS,
    Experiment,
    Trial,
    report,
    reporting,
    run,
    runner,
    shipping,
    trials_of,
)
from simnets.experiments.results import add_result, read_results
from simnets.models.registry import ENTRIES, WEIGHTS
from simnets.training.display import Lines
from simnets.training.recipe import TUNED

PROJECT = Path(__file__).resolve().parents[2]
SMALL = {"templates": 8, "whitened": 6}
TRIALS = (
    Trial("simnet_mlpconv", "digits", epochs=2, options=SMALL),
    Trial("simnet_mlpconv", "digits", epochs=2, variant="l1", options=SMALL | {"p": 1.0}),
)
DIGITS = Experiment("two-layer", "Digits", TRIALS, {("simnet_mlpconv", "", "digits"): 99.0}, seeds=2)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("experiment")
    assert run(DIGITS, trials_of(DIGITS), results=folder / "results", runs=folder / "runs")
    return folder


def test_records_hold_what_is_needed_to_repeat_them(finished: Path) -> None:
    records = read_results(finished / "results", "two-layer")
    assert [(r["variant"], r["seed"]) for r in records] == [("", 0), ("l1", 0), ("", 1), ("l1", 1)]
    for record in records:
        assert record["recipe"]["epochs"] == len(record["curve"]) == 2
        assert record["recipe"]["validation"] == 0
        assert record["simnets"] == simnets.__version__
    model = simnets.load(finished / "runs" / records[1]["name"] / "model.safetensors")
    assert [layer.p for layer in model.spec.layers] == [1.0]
    assert records[0]["parameters"] == sum(p.numel() for p in model.parameters())
    test = simnets.data.load_dataset("digits", "test")
    right = (model(test.images).argmax(1) == test.labels).float().mean()
    assert records[1]["test"]["accuracy"] == pytest.approx(float(right), abs=1e-6)


def test_what_is_done_is_not_done_again(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "train", lambda *_, **__: pytest.fail("trained again"))
    assert run(DIGITS, trials_of(DIGITS), results=finished / "results", runs=finished / "runs")


@pytest.mark.parametrize(("change", "warned"), [({}, False), ({"energy": None}, False), ({"lr": 0.5}, True)])
def test_only_other_settings_are_warned_about(
    finished: Path, tmp_path: Path, change: dict[str, object], warned: bool
) -> None:
    """A record from before a field of recipes was added has that field's default."""
    record = read_results(finished / "results", "two-layer")[0]
    recipe = record["recipe"] | change
    add_result(tmp_path, "two-layer", record | {"recipe": {k: v for k, v in recipe.items() if v is not None}})
    said = io.StringIO()
    run(DIGITS, TRIALS[:1], results=tmp_path, runs=tmp_path, display=lambda: Lines(Console(file=said)))
    assert "is done" in said.getvalue()
    assert ("with other settings" in said.getvalue()) is warned


def test_goes_on_after_its_time_was_up(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = {"results": tmp_path / "results", "runs": tmp_path / "runs"}
    one = trials_of(DIGITS, seeds=1)[:1]
    with monkeypatch.context() as stopped_clock:
        # the runner sees time left, and training, by the real clock, stops after its first step
        stopped_clock.setattr(runner, "time", SimpleNamespace(monotonic=lambda: 0.0))
        assert not run(DIGITS, one, deadline=1.0, **places)
    assert (places["runs"] / one[0].name / "checkpoints").is_dir()
    assert not run(DIGITS, one, deadline=time.monotonic() - 1, **places)
    assert read_results(places["results"], "two-layer") == []
    assert run(DIGITS, one, **places)
    again, straight = (
        simnets.load(runs / one[0].name / "model.safetensors").state_dict()
        for runs in (places["runs"], finished / "runs")
    )
    assert all(torch.equal(again[name], straight[name]) for name in straight)


def test_report_has_the_numbers(finished: Path) -> None:
    results = finished / "results"
    readme = finished / "README.md"
    readme.write_text(f"before\n{reporting._BEGIN}\nold\n{reporting._END}\nafter\n")
    written = report(results, readme)
    assert {path.name for path in written} >= {"README.md", "accuracy_flops.png", "curves.png"}
    accuracies = [100 * r["test"]["accuracy"] for r in read_results(results, "two-layer") if not r["variant"]]
    mean = sum(accuracies) / 2
    spread = abs(accuracies[0] - accuracies[1]) / 2**0.5  # the standard deviation of two numbers
    cell = f"{mean:.2f} ± {spread:.2f}"
    assert cell in (results / "README.md").read_text()
    text = readme.read_text()
    assert cell in text
    assert "old" not in text
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    for path in written:
        if path.suffix == ".png":
            assert path.read_bytes().startswith(b"\x89PNG")


def test_a_readme_without_a_place_is_left_alone(finished: Path, tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text("text")
    with pytest.raises(SimNetsError, match="no place for results"):
        report(finished / "results", readme)
    assert readme.read_text() == "text"


def test_weights_are_shipped_with_a_card(finished: Path, tmp_path: Path) -> None:
    weights = tmp_path / "weights"
    assert shipping.ship(finished / "results", finished / "runs", weights) == ["simnet_mlpconv-digits"]
    record = read_results(finished / "results", "two-layer")[0]
    assert f"{100 * record['test']['accuracy']:.2f} %" in (weights / "simnet_mlpconv-digits.md").read_text()
    source = finished / "runs" / record["name"] / "model.safetensors"
    assert (weights / "simnet_mlpconv-digits.safetensors").read_bytes() == source.read_bytes()
    listed = json.loads((weights / "accuracies.json").read_text())
    assert listed == {"simnet_mlpconv-digits": record["test"]["accuracy"]}
    # the run folder may be gone once the weights are in the package
    shipping.ship(finished / "results", tmp_path / "nowhere", weights)


def test_a_distilled_network_ships_beside_the_plain_one(finished: Path, tmp_path: Path) -> None:
    plain = read_results(finished / "results", "two-layer")[0]
    teacher = finished / "runs" / plain["name"] / "model.safetensors"
    add_result(tmp_path, "two-layer", plain)
    trial = replace(TRIALS[0], variant="distilled", changes={"teachers": (str(teacher),)})
    assert run(DIGITS, [trial], results=tmp_path, runs=finished / "runs")
    record = read_results(tmp_path, "two-layer")[1]
    assert [plain["weights_sha256"][:16]] == record["teachers_sha256"]
    assert plain["teachers_sha256"] == []
    weights = tmp_path / "weights"
    names = shipping.ship(tmp_path, finished / "runs", weights)
    assert names == ["simnet_mlpconv-digits", "simnet_mlpconv-digits-distilled"]
    card = (weights / "simnet_mlpconv-digits-distilled.md").read_text()
    assert 'create_model("simnet_mlpconv", weights="digits-distilled")' in card
    rows = reporting.rows_of(DIGITS, tmp_path)
    assert [row.name for row in reporting.longest(rows)] == ["simnet_mlpconv", "simnet_mlpconv, distilled"]
    # what is there to be compared is beside them only where it is asked for
    rows.append(replace(rows[0], variant="equal-operations"))
    assert len(reporting.longest(rows)) == 2
    assert len(reporting.longest(rows, ["equal-operations"])) == 3


def test_other_weights_than_were_measured_are_refused(finished: Path, tmp_path: Path) -> None:
    record = read_results(finished / "results", "two-layer")[0]
    add_result(tmp_path, "two-layer", record | {"weights_sha256": "0" * 64})
    with pytest.raises(SimNetsError, match="is not the network that"):
        shipping.ship(tmp_path, finished / "runs", tmp_path / "weights")


def test_all_seeds_of_a_trial_come_after_the_first_of_all() -> None:
    names = [(trial.variant, trial.seed) for trial in trials_of(DIGITS, seeds=3)]
    assert names == [("", 0), ("l1", 0), ("", 1), ("l1", 1), ("", 2), ("l1", 2)]


@pytest.mark.parametrize(("asked", "expected"), [("plain", ""), ("l1", "l1")])
def test_one_variant_can_be_asked_for(asked: str, expected: str) -> None:
    assert [trial.variant for trial in trials_of(DIGITS, seeds=1, variants=[asked])] == [expected]


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"datasets": ["mnist"]}, "mnist is not in experiment two-layer; it has digits"),
        ({"networks": ["lenet"]}, "lenet is not in experiment"),
        ({"variants": ["l7"]}, "variants: l7 is not in experiment two-layer; it has l1, plain"),
        ({"epochs": 0}, "epochs is 0; expected a whole number of at least 1"),
        ({"seeds": -1}, "seeds is -1"),
    ],
)
def test_bad_wishes_are_refused(asked: dict[str, object], expected: str) -> None:
    with pytest.raises(SimNetsError, match=expected):
        trials_of(DIGITS, **asked)


def test_a_network_and_a_data_set_that_never_meet() -> None:
    with pytest.raises(SimNetsError, match="no trial has datasets svhn and networks resnet8; leave out"):
        trials_of(EXPERIMENTS["two-layer"], networks=["resnet8"], datasets=["svhn"])


def test_all_leaves_out_experiments_without_what_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    other = Experiment("compact", "Other", (Trial("nin_compact", "svhn"), Trial("nin_compact")), {})
    monkeypatch.setattr(experiments, "EXPERIMENTS", {"two-layer": DIGITS, "compact": other})
    ran: list[tuple[str, list[str]]] = []

    def run(experiment: Experiment, trials: list[Trial], **places: object) -> bool:
        ran.append((experiment.name, [trial.name for trial in trials]))
        return True

    monkeypatch.setattr(experiments, "run", run)
    assert main(["reproduce", "all", "--datasets", "svhn", "--seeds", "1"]) == 0
    assert ran == [("two-layer", []), ("compact", ["nin_compact-svhn-100epochs-seed0"])]
    ran.clear()
    assert main(["reproduce", "compact", "--datasets", "svhn", "--datasets", "cifar10", "--seeds", "1"]) == 0
    assert ran == [("compact", [f"nin_compact-{data}-100epochs-seed0" for data in ("svhn", "cifar10")])]
    # one without trials is no reason to stop
    assert runner.run(DIGITS, [])
    for what, expected in (
        (["all", "--datasets", "mnist"], "mnist is not in any experiment; they have cifar10, digits, svhn"),
        (["all", "--networks", "lenet"], "lenet is not in any experiment; they have nin_compact, simnet_m"),
        (["all", "--networks"], "--networks names nothing; give at least one name, or leave it out"),
        (["two-layer", "--datasets", "svhn"], "svhn is not in experiment two-layer; it has digits"),
    ):
        capsys.readouterr()
        assert main(["reproduce", *what]) == 2
        assert expected in capsys.readouterr().err
    assert len(ran) == 1


def test_damaged_results_are_refused(tmp_path: Path) -> None:
    (tmp_path / "two-layer.json").write_text('{"trials"')
    with pytest.raises(SimNetsError, match=r"two-layer\.json is damaged"):
        report(tmp_path)


def test_no_results_no_report(tmp_path: Path) -> None:
    with pytest.raises(SimNetsError, match="has no results"):
        report(tmp_path)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_trial_can_be_built(name: str) -> None:
    for trial in trials_of(EXPERIMENTS[name], seeds=1):
        assert trial.recipe.validation == 0
        with torch.device("meta"):
            simnets.create_model(trial.network, 100 if trial.data == "cifar100" else 10, **trial.options)
    assert all(network in ENTRIES for network in TUNED)


# -- what is committed -----------------------------------------------------------------------------------


def test_readme_agrees_with_the_results() -> None:
    rows = [row for e in EXPERIMENTS.values() for row in reporting.rows_of(e, PROJECT / "results")]
    text = (PROJECT / "README.md").read_text()
    assert reporting.with_table(text, rows) == text


def test_results_page_agrees_with_the_results() -> None:
    rows = {name: reporting.rows_of(e, PROJECT / "results") for name, e in EXPERIMENTS.items()}
    for some in rows.values():
        for row in some:
            assert row.measured in (PROJECT / "results" / "README.md").read_text()


def test_weights_in_the_box_are_those_that_were_measured() -> None:
    records = {shipping.weights_name(r): r for r in shipping.final_records(PROJECT / "results")}
    assert simnets.models.list_weights() == list(simnets.models.shipped_accuracies())
    for file in WEIGHTS.glob("*.safetensors"):
        record = records[file.stem]
        assert simnets.models.shipped_accuracies()[file.stem] == record["test"]["accuracy"]
        assert shipping._digest(file) == record["weights_sha256"]
        assert file.with_suffix(".md").read_text() == shipping.card(record)
        named = file.stem.removeprefix(f"{record['network']}-")
        model = simnets.create_model(record["network"], weights=named)
        assert simnets.count_cost(model).flops == record["flops"]


def test_a_trial_knows_its_seed() -> None:
    assert replace(TRIALS[0], seed=3).name == "simnet_mlpconv-digits-2epochs-seed3"
    assert json.loads(json.dumps(TRIALS[0].options)) == TRIALS[0].options


def test_names_in_the_figure_stay_within_it_and_apart() -> None:
    """Two points at one place near the border, the case that once ran over the axis."""
    experiment = EXPERIMENTS["compact"]
    shared = {"experiment": experiment, "variant": "normalized", "data": "cifar10", "epochs": 60}
    shared |= {"parameters": 1, "train_accuracy": 0.0, "hours": 0.0, "loss_curve": ()}
    rows = [
        reporting.Row(network=name, accuracies=(accuracy,), flops=flops, **shared)
        for name, accuracy, flops in (
            ("simnet3_compact_rectified", 72.6, 3_500_000),
            ("nin_compact", 72.5, 3_520_000),
            ("simnet3", 71.0, 630_000_000),
        )
    ]
    (axes,) = reporting._accuracy_against_operations(rows).axes
    room = axes.get_window_extent()
    boxes = [text.get_window_extent() for text in axes.texts]
    assert len(boxes) == len(rows)
    assert all(room.x0 <= box.x0 and box.x1 <= room.x1 for box in boxes)
    assert not any(one.overlaps(other) for i, one in enumerate(boxes) for other in boxes[:i])
