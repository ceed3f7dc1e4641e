"""`train`: data in, run folder out; killed and called again, it goes on where it was."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import platform
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

import simnets
from simnets.data import ImageDataset, load_dataset, pixel_statistics, split_validation
from simnets.errors import SimNetsError
from simnets.flops import count_cost
from simnets.models import ImageClassifier, create_model, list_weights, load, save, weights_file
from simnets.training import report
from simnets.training.board import board
from simnets.training.display import Display
from simnets.training.distillation import load_teachers
from simnets.training.distributed import World, choose_device, joined
from simnets.training.evaluate import Evaluation, require_same_classes, scores_of, summarise
from simnets.training.files import write_whole
from simnets.training.folder import RunFolder
from simnets.training.loop import Outcome, fit
from simnets.training.memory import keep_memory
from simnets.training.recipe import Recipe, recipe_for
from simnets.training.seeds import seed_for

# Operations of a step's forward pass, about ten milliseconds of one thread.
_WORTH_SHARING = 100e6
# The images of `digits` are too small for two layers of patches.
_DEFAULT_MODELS = {"digits": "simnet_mlpconv"}


@dataclass(frozen=True)
class Run:
    """A finished run: its folder, its network, a record an epoch, its result on the test images."""

    folder: Path
    model: ImageClassifier
    history: list[dict[str, Any]]
    evaluation: Evaluation
    was_finished: bool = False


def default_model(data: str | Path | ImageDataset) -> str:
    """The network that `train` takes when none is named."""
    name = data.name if isinstance(data, ImageDataset) else str(data)
    return _DEFAULT_MODELS.get(name, "simnet2")


def train(
    model: str | Path | ImageClassifier | None,
    data: str | Path | ImageDataset,
    out: str | Path,
    recipe: str | Recipe = "fast",
    seed: int = 0,
    *,
    test: ImageDataset | None = None,
    options: Mapping[str, Any] | None = None,
    device: str = "auto",
    amp: str | None = None,
    compile: bool = False,
    threads: int = 0,
    checkpoint_minutes: float = 5.0,
    tensorboard: bool = False,
    image_size: int | None = None,
    data_root: str | Path | None = None,
    deadline: float | None = None,
    display: Display | None = None,
) -> Run:
    """Pre-train, train and evaluate a network, and leave everything about it in the folder `out`.

    model: a name of the registry, a weights file to start from, a network, or None for one that fits `data`.
    data: a name or path for `load_dataset`, or a data set together with `test`.
    recipe: "fast", "paper" or a Recipe.
    options: fields of the named network's specification that are changed, such as {"p": 1.0}.
    device: "auto", "cpu", "cuda" or "mps". amp: None or "bf16".
    threads: 0 takes one for very small networks, and otherwise as many as torch does.
    deadline: of time.monotonic(); then the run saves and stops with TrainingInterrupted, signum 0.

    Called again with the same arguments it goes on after the last checkpoint; weights come out bit by bit
    as if it had never stopped (on the same machine, with the same number of threads).

    >>> run = train("simnet_mlpconv", "digits", "runs/digits")  # doctest: +SKIP
    >>> run.evaluation.accuracy  # doctest: +SKIP
    """
    if amp not in (None, "bf16"):
        raise SimNetsError(f"amp is {amp!r}; expected 'bf16' or nothing")
    chosen = choose_device(device)
    if chosen.type == "cuda":
        torch.backends.cudnn.deterministic = True
    elif chosen.type == "cpu":
        keep_memory()
    training, testing = _load(data, test, data_root, image_size)
    name = training.name if isinstance(data, ImageDataset) else data
    chosen_model = model if model is not None else default_model(data)
    network_name = chosen_model if isinstance(chosen_model, str) else ""
    recipe = recipe_for(recipe, name, network_name, trained=is_weights_file(model))
    network, origin = _network(chosen_model, training, recipe, seed, dict(options or {}))
    rest, validation = _split(training, recipe)
    teachers = load_teachers(recipe, training)
    config = {
        "simnets": simnets.__version__,
        "model": {"origin": origin, "spec": json.loads(network.spec.to_json())},
        "data": {"name": str(getattr(data, "name", data)), "classes": list(training.classes)}
        | {"train": _fingerprint(training), "test": _fingerprint(testing)},
        "seed": seed,
        "recipe": dataclasses.asdict(recipe),
        "amp": amp,
        "compile": compile,
    } | ({"teachers": list(teachers)} if teachers else {})
    folder = RunFolder(out)
    display = display or Display()
    with (
        _threads(threads or _enough_threads(network, recipe)),
        joined(chosen) as world,
        folder.opened(config) if world.main else contextlib.nullcontext(),
    ):
        if world.any([folder.finished])[0]:
            return _finished(folder)
        if amp and world.main and _emulates_bfloat16(chosen):
            display.say("this processor has no bfloat16 arithmetic; --amp off is faster here")
        network.to(chosen)
        with board(folder / "tensorboard" if tensorboard and world.main else None) as log:
            outcome = fit(
                network,
                rest,
                recipe=recipe,
                validation=validation,
                teachers=[teacher.to(chosen) for teacher in teachers.values()],
                seed=seed,
                world=world,
                amp=amp,
                compile=compile,
                checkpoints=folder.checkpoints,
                checkpoint_minutes=checkpoint_minutes,
                deadline=deadline,
                display=display if world.main else None,
                on_epoch=_recorder(folder, log) if world.main else None,
            )
        network.cpu()
        scores = scores_of(network, testing.images)
        evaluation = summarise(scores, testing.labels, testing.classes)
        if world.main:
            _finish(folder, network, config, outcome, evaluation, scores, testing, world)
        return Run(folder.path, network, outcome.history, evaluation)


def _emulates_bfloat16(device: torch.device) -> bool:
    """Whether bfloat16 is computed by way of float32, which takes two to three times as long as float32."""
    if device.type != "cpu":
        return False
    known = torch.cpu.get_capabilities()
    return known.get("architecture") == "x86_64" and not (known.get("amx_bf16") or known.get("avx512_bf16"))


def is_weights_file(model: object) -> bool:
    """Whether `model` is a weights file, in the box or elsewhere, and not a network or its name."""
    if isinstance(model, str):
        return model.endswith(".safetensors") or model in list_weights()
    return isinstance(model, Path)


def _load(
    data: str | Path | ImageDataset,
    test: ImageDataset | None,
    root: str | Path | None,
    image_size: int | None,
) -> tuple[ImageDataset, ImageDataset]:
    if isinstance(data, ImageDataset):
        if test is None:
            raise SimNetsError("test is missing; a data set given as tensors needs its test images too")
        return data, test
    read = partial(load_dataset, data, root=root, image_size=image_size)
    return read(split="train"), test or read(split="test")


def _network(
    model: str | Path | ImageClassifier,
    training: ImageDataset,
    recipe: Recipe,
    seed: int,
    options: dict[str, Any],
) -> tuple[ImageClassifier, str]:
    """The network, and where it comes from: a name, or the checksum of its weights."""
    if isinstance(model, str) and not is_weights_file(model):
        torch.manual_seed(seed_for(seed, "model"))
        overrides: dict[str, Any] = {"input_shape": training.shape} | options
        if recipe.noise and model.startswith("simnet"):
            overrides["noise"] = recipe.noise
        network = create_model(model, len(training.classes), **overrides)
        network.classes = training.classes
        network.set_pixel_statistics(*pixel_statistics(training.images))
        return network, model
    if options:
        raise SimNetsError(
            f"options {', '.join(options)}: a network that exists keeps its specification; give its name"
        )
    network = model if isinstance(model, ImageClassifier) else load(weights_file(model, "model"))
    require_same_classes(network, training)
    digest = hashlib.sha256()
    for name, value in sorted(network.state_dict().items()):
        digest.update(name.encode() + value.cpu().contiguous().numpy().tobytes())
    return network, digest.hexdigest()[:16]


def _enough_threads(network: ImageClassifier, recipe: Recipe) -> int:
    """One, where a step is so short that threads would mostly wait for each other."""
    work = count_cost(network).flops * recipe.batch_size
    return 1 if work < _WORTH_SHARING else torch.get_num_threads()


@contextlib.contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _split(training: ImageDataset, recipe: Recipe) -> tuple[ImageDataset, ImageDataset | None]:
    size = round(recipe.validation * len(training)) if recipe.validation < 1 else int(recipe.validation)
    # Always the same images, whatever the seed: runs with other seeds stay comparable.
    return split_validation(training, size, seed=0) if size else (training, None)


def _fingerprint(dataset: ImageDataset) -> str:
    """Tells data sets apart, so that a run cannot go on with other images."""
    digest = hashlib.sha256(dataset.images.cpu().numpy().tobytes())
    digest.update(dataset.labels.cpu().numpy().tobytes())
    return f"{len(dataset)} images {digest.hexdigest()[:16]}"


def _recorder(
    folder: RunFolder, log: Callable[[dict[str, Any]], None]
) -> Callable[[list[dict[str, Any]]], None]:
    def record(history: list[dict[str, Any]]) -> None:
        folder.write_history(history)
        log(history[-1])

    return record


def _finish(
    folder: RunFolder,
    network: ImageClassifier,
    config: dict[str, Any],
    outcome: Outcome,
    evaluation: Evaluation,
    scores: torch.Tensor,
    testing: ImageDataset,
    world: World,
) -> None:
    save(network, folder / "model.safetensors")
    machine = f"{world.size} × {world.device.type}, {torch.get_num_threads()} threads, {platform.machine()}"
    for name, content in report.files(network, config, outcome, evaluation, scores, testing, machine).items():
        write_whole(folder / name, content)
    result = {"test": evaluation.as_dict(), "seconds": outcome.seconds, "epochs": len(outcome.history)}
    # Last of all: from now on the run counts as finished.
    write_whole(folder / "result.json", json.dumps(result, indent=2, ensure_ascii=False) + "\n")
    folder.checkpoints.clear()


def _finished(folder: RunFolder) -> Run:
    network = load(folder / "model.safetensors")
    found = json.loads((folder / "result.json").read_text())["test"]
    evaluation = Evaluation(
        classes=network.classes,
        images=found["images"],
        accuracy=found["accuracy"],
        loss=found["loss"],
        calibration_error=found["calibration_error"],
        per_class=tuple(float("nan") if v is None else v for v in found["per_class"].values()),
        confusion=tuple(tuple(row) for row in found["confusion"]),
    )
    return Run(folder.path, network, folder.read_history(), evaluation, was_finished=True)
