"""Train in child processes that are killed, each somewhere else, and start again until the run is done.

    python kill_driver.py FOLDER

Prints a JSON object: for each way of being killed, how often it was started and the checksum of its weights.
A process of its own, so that forking is safe: nothing here starts a thread.
"""

import dataclasses
import json
import os
import signal
import sys
from pathlib import Path

import tiny
import torch

from simnets.training import files, preparation, report, train
from simnets.training.checkpoint import Checkpoints


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def before_call(owner, name, count):
    """Kill the process as it is about to call `owner.name` for the `count`-th time."""
    original, calls = getattr(owner, name), [0]

    def wrapped(*args, **kwargs):
        calls[0] += 1
        if calls[0] == count:
            die()
        return original(*args, **kwargs)

    setattr(owner, name, wrapped)


def in_half_written_checkpoint(count):
    """Kill the process when the temporary file holds only half of what it should."""
    original, calls = files.os.fsync, [0]

    def fsync(handle):
        name = os.readlink(f"/proc/self/fd/{handle}")
        if "step-" in name:
            calls[0] += 1
            if calls[0] == count:
                os.truncate(name, os.path.getsize(name) // 2)
                die()
        return original(handle)

    files.os.fsync = fsync


# Each is done in its first process; minutes 0 writes a checkpoint after every step.
WAYS = {
    "not at all": (None, 1e9, "muon"),
    "in preparation": (lambda: before_call(preparation, "prepare", 1), 1e9, "muon"),
    "in the middle of an epoch": (lambda: before_call(preparation, "after_step", 7), 1e9, "muon"),
    "in the middle of an epoch, checkpoint each step": (
        lambda: before_call(preparation, "after_step", 7),
        0,
        "muon",
    ),
    "in a half-written checkpoint": (lambda: in_half_written_checkpoint(3), 1e9, "muon"),
    "before a checkpoint gets its name": (lambda: before_call(files.os, "replace", 5), 1e9, "muon"),
    "before old checkpoints go": (lambda: before_call(Checkpoints, "_newest_first", 4), 0, "muon"),
    "before the report": (lambda: before_call(report, "files", 1), 1e9, "muon"),
    "not at all, sgd": (None, 1e9, "sgd"),
    "in the middle of an epoch, sgd": (lambda: before_call(preparation, "after_step", 10), 0, "sgd"),
}


def one_training(folder, minutes, optimizer):
    recipe = dataclasses.replace(tiny.RECIPE, optimizer=optimizer)
    train(tiny.network(), tiny.data(), folder, recipe, test=tiny.data(20, seed=1), checkpoint_minutes=minutes)


def main(root):
    # Has torch import what optimisers need, once for all children.
    torch.optim.SGD([torch.zeros(1, requires_grad=True)])
    # The pictures take most of the time and none of the risk.
    report.files = lambda *args: {"report.html": "nothing"}
    outcomes = {}
    for way, (prepare_to_die, minutes, optimizer) in WAYS.items():
        folder, starts, status = root / way.replace(" ", "-"), 0, None
        while status != 0 and starts < 3:
            starts += 1
            child = os.fork()
            if child == 0:
                if starts == 1 and prepare_to_die is not None:
                    prepare_to_die()
                one_training(folder, minutes, optimizer)
                os._exit(0)
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            if starts == 1 and prepare_to_die is not None:
                assert status == -signal.SIGKILL, (way, status)
        weights = tiny.digest(folder / "model.safetensors")
        outcomes[way] = {
            "starts": starts,
            "weights": weights,
            "files": sorted(p.name for p in folder.iterdir()),
        }
    print(json.dumps(outcomes))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
