"""Short trainings that choose between recipes: 10,000 CIFAR-10 images, 6 epochs, the 10,000 held-out ones.

    python benchmarks/proxies.py base "perplexity=10" "rectify=(True,False) bias_mode=learned" "@caffe_quick"

Each argument is one training: changes of recipe `fast` and of the network's specification (a tuple has a
value for each layer), images=40000 for another number of images, amp=bf16 to train with bfloat16, and
@NAME for another network than simnet2.
Results are appended to results/proxies.jsonl, a line each, which `simnets reproduce report` makes a table of.
The test set is never read. One seed: differences below about 1.5 points are ties.
"""

from __future__ import annotations

import ast
import dataclasses
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

import simnets
from simnets.data import load_dataset, pixel_statistics, split_validation
from simnets.training.loop import fit
from simnets.training.memory import keep_memory
from simnets.training.recipe import Recipe, recipe_for

RESULTS = Path(__file__).resolve().parent.parent / "results" / "proxies.jsonl"
IMAGES, EPOCHS, THREADS = 10_000, 6, 1  # one thread each: run two at once on two cores


def run(text: str) -> dict[str, object]:
    """Train once; what came out, with everything needed to repeat it."""
    words = [] if text == "base" else text.split()
    name = next((word[1:] for word in words if word.startswith("@")), "simnet2")
    changes: dict[str, Any] = {"epochs": EPOCHS}
    for word in words:
        if not word.startswith("@"):
            field, _, value = word.partition("=")
            try:
                changes[field] = ast.literal_eval(value)
            except ValueError:
                changes[field] = value  # a word, such as adam
    images, amp = int(changes.pop("images", IMAGES)), changes.pop("amp", None)
    recipe_fields = {field.name for field in dataclasses.fields(Recipe)}
    network = {field: changes.pop(field) for field in set(changes) - recipe_fields}
    recipe = recipe_for("fast", "cifar10", **changes)
    training, validation = split_validation(load_dataset("cifar10", "train"), 10_000, seed=0)
    order = torch.randperm(len(training), generator=torch.Generator().manual_seed(0))
    training = training.subset(order[:images])
    torch.manual_seed(0)
    model = simnets.create_model(name, **network)
    model.set_pixel_statistics(*pixel_statistics(training.images))
    started = time.monotonic()
    outcome = fit(model, training, recipe=recipe, validation=validation, seed=0, amp=amp)
    last = outcome.history[-1]
    return {
        "run": text,
        "model": name,
        "images": len(training),
        "epochs": recipe.epochs,
        "train": round(100 * last["accuracy"], 2),
        "validation": round(100 * last["validation_accuracy"], 2),
        "curve": [round(100 * record["validation_accuracy"], 2) for record in outcome.history],
        "seconds": round(time.monotonic() - started),
        "recipe": dataclasses.asdict(recipe),
        "network": network,
        "version": simnets.__version__,
    }


def main(arguments: list[str]) -> None:
    if not arguments:
        sys.exit(__doc__)
    torch.set_num_threads(THREADS)
    keep_memory()
    for text in arguments:
        result = run(text)
        RESULTS.parent.mkdir(exist_ok=True)
        with RESULTS.open("a") as file:
            file.write(json.dumps(result) + "\n")
        print(f"{result['validation']:.2f} held out, {result['train']:.2f} training: {text}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
