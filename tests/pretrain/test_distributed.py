"""Two processes (gloo) end with what one process finds in the same data."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from distributed_worker import estimates

WORKER = Path(__file__).parent / "distributed_worker.py"


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Of two processes, and of this one."""
    folder = tmp_path_factory.mktemp("processes")
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    if sys.platform == "linux":
        environment["GLOO_SOCKET_IFNAME"] = "lo"
    processes = [
        subprocess.Popen(
            [
                sys.executable,
                str(WORKER),
                str(rank),
                "2",
                str(folder / "rendezvous"),
                str(folder / f"{rank}.npz"),
            ],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    alone = estimates()
    try:
        for process in processes:
            _, errors = process.communicate(timeout=240)
            assert process.returncode == 0, errors
    finally:
        for process in processes:
            process.kill()
    return [dict(np.load(folder / f"{rank}.npz")) for rank in range(2)], alone


def test_both_processes_agree_exactly(results):
    (first, second), _ = results
    assert first.keys() == second.keys()
    for name in first:
        assert (first[name] == second[name]).all() or name == "error", name


def test_two_processes_equal_one(results):
    (first, _), alone = results
    assert first.keys() == alone.keys()
    assert len(alone) > 40
    for name, expected in alone.items():
        if name != "error":
            np.testing.assert_allclose(first[name], expected, rtol=1e-5, atol=1e-6, err_msg=name)


def test_an_error_of_one_process_stops_both(results):
    (first, second), alone = results
    assert all("error" in found for found in (first, second, alone))
