"""Two processes, one of which is killed and restarted, against one process that does it all."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tiny

from simnets.cli import main
from simnets.training import report


@pytest.fixture
def options(tmp_path):
    data = tiny.data()
    np.savez(tmp_path / "stripes.npz", images=data.images.numpy(), labels=data.labels.numpy())
    return [
        *(
            "--data",
            str(tmp_path / "stripes.npz"),
            "--model",
            "simnet_mlpconv",
            "--epochs",
            "4",
            "--label-smoothing",
            "0.2",
        ),
        *(
            "--batch-size",
            "16",
            "--ema",
            "0.9",
            "--shift",
            "1",
            "--lr",
            "0.002",
            "--quiet",
            "--device",
            "cpu",
        ),
    ]


def test_two_processes_train_as_one_and_survive_the_loss_of_a_worker(tmp_path, options, monkeypatch):
    worker = Path(__file__).with_name("torchrun_worker.py")
    two = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"),
            *("--max-restarts=1", str(worker), "train", *options, "--out", str(tmp_path / "two")),
        ],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=300,
    )
    assert two.returncode == 0, two.stderr
    assert "exitcode: -9" in two.stderr or "Signal 9" in two.stderr
    with monkeypatch.context() as patch:
        patch.setattr(report, "files", lambda *args: {})
        assert main(["train", *options, "--out", str(tmp_path / "one")]) == 0

    def curve(name):
        lines = (tmp_path / name / "metrics.jsonl").read_text().splitlines()
        return [[json.loads(line)[k] for k in ("loss", "validation_loss", "accuracy")] for line in lines]

    assert len(curve("one")) == 4
    np.testing.assert_allclose(curve("two"), curve("one"), rtol=1e-4, atol=1e-5)
    assert (tmp_path / "two" / "report.html").exists()
