"""A run that is killed at any moment and started again ends as one that was never stopped, bit by bit."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    driver = Path(__file__).with_name("kill_driver.py")
    folder = tmp_path_factory.mktemp("killed")
    done = subprocess.run(
        [sys.executable, driver, folder],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return folder, json.loads(done.stdout)


def test_every_way_ends_with_the_same_weights(outcomes):
    _, found = outcomes
    assert len(found) == 10
    for way, outcome in found.items():
        unharmed = "not at all, sgd" if way.endswith("sgd") else "not at all"
        assert outcome["weights"] == found[unharmed]["weights"], way
        assert outcome["starts"] == (1 if way == unharmed else 2), way
    assert found["not at all"]["weights"] != found["not at all, sgd"]["weights"]


def test_metrics_are_those_of_an_unbroken_run_and_nothing_is_left_over(outcomes):
    folder, found = outcomes
    clocks = ("seconds", "images_per_second")

    def metrics(way):
        lines = (folder / way.replace(" ", "-") / "metrics.jsonl").read_text().splitlines()
        return [{k: v for k, v in json.loads(line).items() if k not in clocks} for line in lines]

    for way, outcome in found.items():
        assert metrics(way) == metrics("not at all, sgd" if way.endswith("sgd") else "not at all"), way
        expected = ["config.json", "metrics.jsonl", "model.safetensors", "report.html", "result.json"]
        assert outcome["files"] == expected, way
