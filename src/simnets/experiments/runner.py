"""Runs the trials of an experiment one after the other, and goes on where it stopped."""

from __future__ import annotations

import hashlib
import json
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import simnets
from simnets.experiments.results import Record, add_result, read_results
from simnets.experiments.trial import Experiment, Trial
from simnets.flops import count_cost
from simnets.training import Run, TrainingInterrupted, train
from simnets.training.display import Display, span
from simnets.training.recipe import plain, recorded


def run(
    experiment: Experiment,
    trials: Sequence[Trial],
    *,
    results: Path = Path("results"),
    runs: Path = Path("runs"),
    deadline: float | None = None,
    device: str = "auto",
    amp: str | None = None,
    threads: int = 0,
    display: Callable[[], Display] = Display,
) -> bool:
    """Train what results/<experiment>.json does not have yet; True if nothing is left to do.

    deadline: of time.monotonic(); a training that is under way then is saved, and goes on in the next call.
    """
    commit = _commit()  # now: files may change while a network trains
    for number, trial in enumerate(trials, 1):
        shown = display()
        where = f"{experiment.name} {number}/{len(trials)}: {trial.name}"
        if (known := _known(results, experiment, trial)) is not None:
            same = recorded(known["recipe"]) == plain(trial.recipe) and known["options"] == trial.options
            accuracy = f"{100 * known['test']['accuracy']:.2f} %"
            note = "" if same else ", with other settings; take it out of the JSON file to run it again"
            shown.say(f"{where} is done, {accuracy}{note}")
            continue
        if deadline is not None and time.monotonic() >= deadline:
            shown.say(f"{where}: no time left; the same command goes on here")
            return False
        shown.say(where)
        try:
            done = train(
                trial.network,
                trial.data,
                runs / trial.name,
                trial.recipe,
                trial.seed,
                options=trial.options,
                device=device,
                amp=amp,
                threads=threads,
                deadline=deadline,
                display=shown,
            )
        except TrainingInterrupted as stop:
            if stop.signum:
                raise
            shown.say(f"{where}: no time left, {stop} and saved; the same command goes on here")
            return False
        record = record_of(trial, done, commit)
        add_result(results, experiment.name, record)
        accuracy, took = f"{100 * record['test']['accuracy']:.2f} %", span(record["seconds"])
        shown.say(f"{where}: test accuracy {accuracy} in {took}")
    return True


def _known(results: Path, experiment: Experiment, trial: Trial) -> Record | None:
    records = read_results(results, experiment.name)
    return next((record for record in records if record["name"] == trial.name), None)


def record_of(trial: Trial, done: Run, commit: str | None) -> Record:
    """Everything about a finished trial that fits into a few lines of JSON."""
    config = json.loads((done.folder / "config.json").read_text())
    result = json.loads((done.folder / "result.json").read_text())
    weights = done.folder / "model.safetensors"
    cost = count_cost(done.model)
    kept = ("accuracy", "loss", "calibration_error", "images")
    return {
        "name": trial.name,
        "network": trial.network,
        "variant": trial.variant,
        "data": trial.data,
        "seed": trial.seed,
        "epochs": trial.epochs,
        "options": trial.options,
        "recipe": config["recipe"],
        "amp": config["amp"],
        "teachers_sha256": config.get("teachers", []),  # the first digits
        "parameters": cost.params,
        "flops": cost.flops,
        "test": {key: result["test"][key] for key in kept},
        "train_accuracy": done.history[-1]["accuracy"],
        "seconds": round(result["seconds"]),
        "simnets": config["simnets"],
        "commit": commit,
        "weights_sha256": hashlib.sha256(weights.read_bytes()).hexdigest(),
        "weights_bytes": weights.stat().st_size,
        "curve": [
            {"epoch": line["epoch"], "loss": round(line["loss"], 4), "accuracy": round(line["accuracy"], 4)}
            for line in done.history
        ],
    }


def _commit() -> str | None:
    """The commit of the source that ran, with a + if files were changed since; None outside a clone."""
    folder = Path(simnets.__file__).parent
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--dirty=+"], cwd=folder, capture_output=True, text=True
        )
    except OSError:
        return None
    return found.stdout.strip() or None
