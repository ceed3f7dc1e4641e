"""`benchmark`: who is measured, in which order, and what the report says; not how long anything takes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import simnets
from simnets import SimNetsError
from simnets.data import load_dataset
from simnets.deploy import BenchmarkReport, benchmark
from simnets.deploy import engines as engines_module
from simnets.deploy.benchmark import Measurement, Network, _summary
from simnets.training import evaluate


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Weights of two tiny networks, as a run leaves them, one with its result beside it."""
    paths = []
    for name, width in (("narrow", 4), ("wide", 12)):
        torch.manual_seed(0)
        folder = tmp_path_factory.mktemp(name)
        model = simnets.create_model("simnet_mlpconv", input_shape=(1, 8, 8), whitened=4, templates=width)
        simnets.save(model, folder / "model.safetensors")
        paths.append(str(folder / "model.safetensors"))
    (folder / "result.json").write_text(json.dumps({"test": {"accuracy": 0.75}}))
    return paths


@pytest.fixture(scope="module")
def report(files: list[str]) -> BenchmarkReport:
    kinds = ("eager", "optimized", "training")
    return benchmark(files, engines=kinds, batches=(1, 3), threads=(1,), rounds=3, turn=0.0)


def test_everyone_is_measured(report: BenchmarkReport, files: list[str]) -> None:
    measured = {(m.network, m.engine, m.threads, m.batch) for m in report.measurements}
    kinds = ("eager", "optimized", "training")
    assert measured == {(file, kind, 1, batch) for file in files for kind in kinds for batch in (1, 3)}
    assert len(report.measurements) == len(measured)
    assert all(0 < m.low <= m.median <= m.high for m in report.measurements)
    assert report.reference == files[0]
    assert all(report.ratio(m) == 1 for m in report.measurements if m.network == files[0])


def test_turns_are_interleaved(files: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    def prepare(
        contestant: engines_module.Contestant, images: torch.Tensor, threads: int
    ) -> engines_module.Run:
        assert images.shape == (2, 1, 8, 8)
        assert torch.get_num_threads() == threads == 1
        return lambda: order.append(contestant.name)

    monkeypatch.setitem(engines_module.ENGINES, "eager", prepare)
    done: list[tuple[int, int]] = []
    benchmark(
        files,
        engines=("eager",),
        batches=(2,),
        threads=(1,),
        rounds=4,
        turn=0.0,
        progress=lambda finished, total, text: done.append((finished, total)),
    )
    # one call each to start, then in every round one that is not counted and one that is
    assert order == files + 4 * [name for name in files for _ in range(2)]
    assert done[-1] == (8, 8)
    assert [finished for finished, _ in done] == sorted(finished for finished, _ in done)


def test_median_and_quartiles() -> None:
    seconds = [0.004, 0.001, 0.01, 0.002, 0.003]
    found = _summary("a", "eager", 1, 1, seconds)
    expected = np.percentile(np.array(seconds) * 1000, [25, 50, 75])
    assert (found.low, found.median, found.high) == pytest.approx(tuple(expected))
    assert found.images_per_second == pytest.approx(1000 / 3)
    alone = _summary("a", "eager", 1, 1, [0.002])
    assert (alone.low, alone.median, alone.high) == pytest.approx((2, 2, 2))


def test_json_table_and_accuracy(report: BenchmarkReport, files: list[str]) -> None:
    found = json.loads(report.to_json())
    assert [network["accuracy"] for network in found["networks"]] == [None, 0.75]
    assert [network["params"] for network in found["networks"]] == [
        simnets.count_cost(simnets.load(file)).params for file in files
    ]
    assert found["measurements"][0].keys() >= {"network", "engine", "threads", "batch", "median", "ratio"}
    assert found["machine"]["torch"] == torch.__version__
    table = report.table()
    assert [column.header for column in table.columns][-3:] == ["batch 1", "batch 3", "images/s, batch 3"]
    assert table.row_count == 6


def test_accuracy_on_given_images(files: list[str]) -> None:
    test = load_dataset("digits", "test")
    found = benchmark(files, engines=("eager",), batches=(1,), threads=(1,), rounds=1, turn=0.0, test=test)
    expected = [evaluate(simnets.load(file), test).accuracy for file in files]
    assert [network.accuracy for network in found.networks] == expected


def test_plot(report: BenchmarkReport) -> None:
    assert report.plot().startswith(b"\x89PNG")
    unknown = BenchmarkReport((Network("a", 1, 1, None),), report.measurements, "a", {})
    with pytest.raises(SimNetsError, match="no accuracy is known to plot"):
        unknown.plot()


def test_ratio_to_caffe_quick() -> None:
    times = {"simnet2": 3.0, "caffe_quick": 4.0}
    measurements = tuple(Measurement(name, "onnx", 1, 1, ms, ms, ms) for name, ms in times.items())
    report = BenchmarkReport((), measurements, "caffe_quick", {})
    assert report.ratio(measurements[0]) == 0.75


def test_onnx_runtime_takes_part(files: list[str]) -> None:
    pytest.importorskip("onnxruntime")
    found = benchmark(files[:1], engines=("onnx", "int8"), batches=(2,), threads=(1,), rounds=1, turn=0.0)
    assert [m.engine for m in found.measurements] == ["onnx", "int8"]


def test_the_number_of_threads_is_put_back(files: list[str]) -> None:
    before = torch.get_num_threads()
    benchmark(files[:1], engines=("eager",), batches=(1,), threads=(2, 1), rounds=1, turn=0.0)
    assert torch.get_num_threads() == before


def test_accuracy_of_weights_in_the_box_is_known() -> None:
    name = "simnet3_compact-cifar10"
    found = benchmark([name], engines=("eager",), batches=(1,), threads=(1,), rounds=1, turn=0.0)
    assert [one.accuracy for one in found.networks] == [simnets.models.shipped_accuracies()[name]]


def test_bad_input(files: list[str], tmp_path: Path) -> None:
    quick = {"rounds": 1, "turn": 0.0, "threads": (1,)}
    for names, options, message in (
        ([], {}, "networks is empty"),
        ([files[0], files[0]], {}, "networks names something twice"),
        (["simnet9"], {}, "network is 'simnet9', neither a file nor a name from `simnets models`"),
        (files, {"engines": ("tpu",)}, "engine is 'tpu', expected one of eager, optimized"),
        (files, {"batches": (0,)}, "batches: 0 is too small"),
        (files, {"rounds": 0}, "rounds: 0 is too small"),
        (files, {"clock": "sun"}, "clock is 'sun'"),
        (
            files,
            {"clock": "processor", "threads": (1, 2)},
            "clock 'processor' adds the time of all threads up",
        ),
        ([files[0], "simnet2"], {}, r"different shapes: \(1, 8, 8\), \(3, 32, 32\)"),
    ):
        with pytest.raises(SimNetsError, match=message):
            benchmark(names, **{**quick, **options})  # type: ignore[arg-type]
