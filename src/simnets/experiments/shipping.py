"""Trained weights into the package: the first seed of every final network, with a model card each."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from simnets.errors import SimNetsError
from simnets.experiments.plan import EXPERIMENTS
from simnets.experiments.results import Record, read_results
from simnets.experiments.trial import FINAL_VARIANTS
from simnets.models.registry import ACCURACIES, WEIGHTS
from simnets.training.display import span
from simnets.training.files import write_whole

LARGEST = 1_000_000  # bytes


def final_records(results: Path) -> list[Record]:
    """Seed 0 of every network and final variant on every data set, with its longest schedule.

    Seed 0 and not the best seed: that one would have been chosen on the test images.
    """
    longest: dict[str, Record] = {}
    for name in EXPERIMENTS:
        for record in read_results(results, name):
            if record["variant"] not in FINAL_VARIANTS or record["seed"]:
                continue
            key = weights_name(record)
            if key not in longest or record["epochs"] > longest[key]["epochs"]:
                longest[key] = record
    return list(longest.values())


def weights_name(record: Record) -> str:
    """The name of its weights in the box: network, data set and, if there is one, variant."""
    return "-".join(filter(None, (record["network"], record["data"], record["variant"])))


def ship(results: Path, runs: Path, weights: Path = WEIGHTS) -> list[str]:
    """Copy the weights of the final runs; write a card for each, and a list. Returns their names."""
    written: dict[str, float] = {}
    weights.mkdir(exist_ok=True)
    for record in final_records(results):
        if record["weights_bytes"] > LARGEST:
            continue
        name = weights_name(record)
        target, source = weights / f"{name}.safetensors", runs / record["name"] / "model.safetensors"
        if not (target.is_file() and _digest(target) == record["weights_sha256"]):
            if not source.is_file():
                raise SimNetsError(f"{source} is missing; run the trial again, or give --runs its folder")
            if _digest(source) != record["weights_sha256"]:
                raise SimNetsError(f"{source} is not the network that {name} in {results} was measured with")
            write_whole(target, source.read_bytes())
        write_whole(weights / f"{name}.md", card(record))
        written[name] = record["test"]["accuracy"]
    write_whole(weights / ACCURACIES, json.dumps(dict(sorted(written.items())), indent=1) + "\n")
    return list(written)


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def card(record: Record) -> str:
    """A model card in Markdown, from a record of the results."""
    network, data, test = record["network"], record["data"], record["test"]
    name = weights_name(record)
    given = name.removeprefix(f"{network}-")
    recipe = ", ".join(f"{key} {value}" for key, value in record["recipe"].items() if key != "name")
    return f"""# {network}{f", {record['variant']}," if record["variant"] else ""} on {data}

| | |
|---|---|
| test accuracy | {100 * test["accuracy"]:.2f} % of {test["images"]:,} images |
| test loss, calibration error | {test["loss"]:.4f}, {100 * test["calibration_error"]:.2f} % |
| training accuracy, last epoch | {100 * record["train_accuracy"]:.2f} % of augmented images |
| parameters, operations an image | {record["parameters"]:,}, {record["flops"]:,} |
| trained on | all training images of {data}, {record["epochs"]} epochs, seed {record["seed"]} |
| time | {span(record["seconds"])} of CPU training{", with bfloat16" if record.get("amp") else ""} |
| code | simnets {record["simnets"]}, commit {record["commit"]} |
| recipe | `fast` with: {recipe} |

Use: `simnets.create_model("{network}", weights="{given}")`, and to check the accuracy above:
`simnets evaluate {name} --data {data}`.

Limits: trained on {data} and nothing else; it gives a class of that data set to any image. The seed was fixed
beforehand, and the test images were used once, for the figure above.
"""
