"""The command line: parses, calls the library, prints.

Every command is a function whose signature is its options. What is needed to run one is imported when it
runs, so that `simnets --help` answers at once.
"""

import json
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro
from rich.console import Console
from rich.table import Table
from tyro.conf import Positional, Suppress, UseAppendAction, arg

from simnets.errors import SimNetsError

if TYPE_CHECKING:
    from simnets.data import ImageDataset
    from simnets.models import ImageClassifier
    from simnets.training import Evaluation

Device = Literal["auto", "cpu", "cuda", "mps"]
# --names a b, --names a --names b, or both
Names = Annotated[tuple[list[str], ...], UseAppendAction, arg(metavar="NAME ...", help_behavior_hint="")]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; 0 if all went well, 2 with one line on stderr for bad input."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return _leave(_run(arguments))
    except SimNetsError as error:
        _complain(str(error))
        return 2
    except KeyboardInterrupt as interruption:
        return _interrupted(interruption, arguments)


def _leave(code: int) -> int:
    """Under torchrun, end the process here and now, with this code.

    gloo's threads outlive a process group that a DistributedDataParallel has used. Where the interpreter
    takes the process down around them it now and then aborts, and a run that was finished counts as failed.
    """
    if "TORCHELASTIC_RUN_ID" in os.environ:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def _run(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        _overview()
        return 0
    if arguments[0] == "--version":
        from simnets import __version__

        print(__version__)
        return 0
    name, rest = arguments[0], arguments[1:]
    if name == "data":
        name, rest = " ".join(arguments[:2]), arguments[2:]
    if name not in COMMANDS:
        close = [known for known in COMMANDS if known.startswith(name.split("-")[0])]
        raise SimNetsError(f"there is no command {name!r}; choose one of {', '.join(close or COMMANDS)}")
    command = COMMANDS[name]
    if name == "train":
        command = _train_with(rest)
    result = tyro.cli(command, args=rest, prog=f"simnets {name}")
    return int(result or 0)


def _overview() -> None:
    console = _console()
    console.print("[bold]simnets[/bold]: train, evaluate and use Deep SimNets\n")
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, command in COMMANDS.items():
        table.add_row(f"  [bold]{name}[/bold]", (command.__doc__ or "").splitlines()[0])
    console.print(table)
    console.print("\nExample: [bold]simnets train --data digits --out runs/digits[/bold]")
    console.print("Options of a command: [bold]simnets train --help[/bold]")


def _complain(text: str) -> None:
    rank = os.environ.get("RANK")
    who = f"simnets (process {rank})" if rank is not None else "simnets"
    print(f"{who}: {' '.join(text.split())}", file=sys.stderr)


def _interrupted(interruption: KeyboardInterrupt, arguments: list[str]) -> int:
    from simnets.training import TrainingInterrupted

    if isinstance(interruption, TrainingInterrupted):
        _complain(f"{interruption} and saved; to go on: simnets {shlex.join(arguments)}")
        return 128 + interruption.signum
    _complain("interrupted")
    return 130


def _console() -> Console:
    # Tables for a file or a pipe are not squeezed into 80 columns.
    return Console(width=None if sys.stdout.isatty() else 140)


# -- train -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _TrainOptions:
    data: str = "digits"
    """Data set: digits, cifar10, cifar100, svhn, or a path (.npz file, folder of images by class)."""
    out: Path = tyro.MISSING
    """Folder of the run. If it holds this very run already, the run goes on or is found finished."""
    image_size: Annotated[int | None, arg(metavar="PIXELS")] = None
    """Side, in pixels, to which the pictures of a folder are brought; 32 if not given."""
    model: Annotated[str | None, arg(metavar="NAME")] = None
    """Name from `simnets models`, or a weights file to start from; if not given, one that fits the data."""
    recipe: str = "fast"
    """Where the options from --epochs on get their defaults: fast (ours) or paper (section 6.1)."""
    seed: int = 0
    """Fixes every random choice."""
    device: Device = "auto"
    """Where to compute."""
    amp: Literal["off", "bf16"] = "off"
    """Compute products in a shorter number format."""
    compile: bool = False
    """Compile the network with torch.compile."""
    threads: int = 0
    """Processor threads; 0 takes one for very small networks, otherwise as many as torch does."""
    checkpoint_minutes: float = 5.0
    """Longest time between checkpoints; there is one after every epoch anyway."""
    tensorboard: bool = False
    """Also log to OUT/tensorboard."""
    quiet: bool = False
    """Show nothing while training."""


def train() -> None:
    """Train a network and leave everything about it in a folder."""


def _train_with(arguments: list[str]) -> Callable[..., int]:
    """The train command with the defaults of the chosen recipe, which `--help` then shows too."""
    from simnets.training import Recipe, default_model, recipe_for
    from simnets.training import train as run_training
    from simnets.training.display import Display, display_for
    from simnets.training.run import is_weights_file

    recipe = recipe_for(
        _given(arguments, "recipe", "fast"),
        _given(arguments, "data", "digits"),
        _given(arguments, "model", ""),
        trained=is_weights_file(_given(arguments, "model", "")),
    )

    @dataclass(frozen=True)
    class Options(Recipe):
        name: Suppress[str] = recipe.name

    def command(
        run: Annotated[_TrainOptions, arg(name="")],
        settings: Annotated[Options, arg(name="")] = Options(**vars(recipe)),  # noqa: B008
    ) -> int:
        """Train a network and leave everything about it in a folder.

        Killed or interrupted, the same command goes on where it was. Several processes:
        torchrun --nproc-per-node=2 -m simnets train …

        Example: simnets train --data digits --out runs/digits --seed 0

        Example: simnets train --data cifar10 --model simnet2 --recipe fast --epochs 40 --out runs/cifar10
        """
        console = _console()
        done = run_training(
            run.model or default_model(run.data),
            run.data,
            run.out,
            Recipe(**{field.name: getattr(settings, field.name) for field in fields(Recipe)}),
            run.seed,
            device=run.device,
            amp=None if run.amp == "off" else run.amp,
            compile=run.compile,
            threads=run.threads,
            checkpoint_minutes=run.checkpoint_minutes,
            tensorboard=run.tensorboard,
            image_size=run.image_size,
            display=Display() if run.quiet else display_for(console),
        )
        if os.environ.get("RANK", "0") != "0":
            return 0
        if done.was_finished:
            console.print(f"{run.out} holds this run, finished before; nothing to do", highlight=False)
        console.print(f"test accuracy {done.evaluation.accuracy:.2%}", highlight=False)
        console.print(f"report: {run.out / 'report.html'}", highlight=False, soft_wrap=True)
        return 0

    return command


def _given(arguments: list[str], option: str, default: str) -> str:
    """The value of --option in the arguments, before they are parsed."""
    for index, argument in enumerate(arguments):
        if argument == f"--{option}" and index + 1 < len(arguments):
            return arguments[index + 1]
        if argument.startswith(f"--{option}="):
            return argument.split("=", 1)[1]
    return default


# -- the other commands ----------------------------------------------------------------------------------


def evaluate(
    file: Positional[str],
    data: str,
    split: Literal["test", "train"] = "test",
    device: Device = "auto",
    json: bool = False,
) -> None:
    """Accuracy, confusion matrix and calibration of a weights file.

    Example: simnets evaluate runs/digits/model.safetensors --data digits

    Args:
        file: Weights, as `simnets train` leaves them, or the name of some from `simnets models`.
        data: Data set, as for `simnets train`.
        split: Which of its images.
        device: Where to compute.
        json: Print JSON.
    """
    from simnets.models import load, weights_file
    from simnets.training import choose_device
    from simnets.training import evaluate as run_evaluation

    model = load(weights_file(file, "file")).to(choose_device(device))
    found = run_evaluation(model, _load_for(model, data, split))
    if json:
        _print_json(found.as_dict())
    else:
        _print_evaluation(found)


def predict(
    file: Positional[str],
    images: Positional[tuple[Path, ...]],
    top: int = 5,
    json: bool = False,
) -> None:
    """The likeliest classes of picture files.

    Example: simnets predict runs/mine/model.safetensors cat.jpg dog.png --top 3

    Args:
        file: Weights, as `simnets train` leaves them, or the name of some from `simnets models`.
        images: PNG, JPEG, … of any size.
        top: How many classes to name.
        json: Print JSON.
    """
    from simnets.models import load, weights_file
    from simnets.training import predict as run_prediction

    if not images:
        raise SimNetsError("images is empty; give at least one picture file")
    found = run_prediction(load(weights_file(file, "file")), images, top)
    if json:
        _print_json(
            [{"image": str(p.path), "top": [{"class": c, "probability": v} for c, v in p.top]} for p in found]
        )
        return
    for prediction in found:
        classes = "  ".join(f"{name} {probability:.1%}" for name, probability in prediction.top)
        print(f"{prediction.path}: {classes}")


def models() -> None:
    """The networks by name, with parameters and cost, and the trained weights in the box.

    Example: simnets models
    """
    from simnets.flops import models_overview
    from simnets.models import shipped_accuracies

    table = Table(box=None, pad_edge=False)
    for column in ("name", "network"):
        table.add_column(column)
    for column in ("parameters", "MFLOPs"):
        table.add_column(column, justify="right")
    for line in models_overview():
        table.add_row(line.name, line.summary, f"{line.params:,}", f"{line.flops / 1e6:.2f}")
    weights = Table("trained weights", "test accuracy", box=None, pad_edge=False)
    weights.columns[1].justify = "right"
    for name, accuracy in shipped_accuracies().items():
        weights.add_row(name, f"{accuracy:.2%}")
    console = _console()
    console.print(table, "", weights, sep="\n")


def inspect(model: Positional[str], out: Path | None = None) -> None:
    """The table of a network or weights file, and drawings of its filters, templates and weights.

    Example: simnets inspect runs/digits/model.safetensors --out drawings

    Args:
        model: Name from `simnets models`, or a weights file.
        out: Draw filters, templates, weights and offsets into this folder.
    """
    from simnets.flops import count_cost
    from simnets.training.files import write_whole, writing

    network = _named_or_loaded(model)
    console = _console()
    console.print(network.current_spec().table(title=model))
    console.print(count_cost(network).table())
    if out is not None:
        from simnets.training.pictures import parameters

        with writing(out):
            out.mkdir(parents=True, exist_ok=True)
        for name, content in parameters(network).items():
            write_whole(out / f"{name}.png", content)
            console.print(str(out / f"{name}.png"), highlight=False, soft_wrap=True)


def pretrain(
    data: str,
    out: Path,
    model: Annotated[str | None, arg(metavar="NAME")] = None,
    auto: bool = False,
    image_size: Annotated[int | None, arg(metavar="PIXELS")] = None,
    whitening: Literal["ica", "pca", "zca"] = "ica",
    patches: int = 100_000,
    seed: int = 0,
) -> None:
    """Start a network from unlabelled images, or let them choose its channels (section 5).

    `simnets train` does this by itself; here it can be looked at, and its outcome trained with
    `simnets train --model OUT/model.safetensors --label-start`.

    Example: simnets pretrain --data cifar10 --model simnet2 --out runs/pretrained

    Example: simnets pretrain --data cifar10 --model simnet2 --auto --out runs/structure

    Args:
        data: Data set, as for `simnets train`; its labels are not looked at.
        out: Folder for model.safetensors, pretrain.json and a page of pictures for each layer.
        model: Name from `simnets models`; if not given, one that fits the data.
        auto: Let the images choose the channels of every layer, instead of the named network's.
        image_size: Side, in pixels, to which the pictures of a folder are brought; 32 if not given.
        whitening: How the filters are found.
        patches: Patches to sample for each layer.
        seed: Fixes every random choice.
    """
    from simnets.pretrain import PretrainConfig
    from simnets.training.pretraining import pretrain as run_pretraining

    console = _console()
    config = PretrainConfig(whitening=whitening, patches=patches, seed=seed)
    network, report = run_pretraining(
        *(model, data, out, config), auto=auto, image_size=image_size, progress=console.print
    )
    console.print(network.spec.table())
    console.print(report.table())
    console.print(f"weights: {out / 'model.safetensors'}", highlight=False, soft_wrap=True)


def export(
    file: Positional[str],
    to: Literal["onnx", "c", "web"] = "onnx",
    out: Annotated[Path | None, arg(metavar="PATH")] = None,
    data: Annotated[str | None, arg(metavar="NAME")] = None,
    int8: bool = False,
    float_similarities: bool = False,
    opset: int = 18,
    overwrite: bool = False,
) -> None:
    """Write a network as ONNX, as one C file, or as a page for the browser, checked against torch.

    Example: simnets export runs/cifar10/model.safetensors --to onnx --out simnet2.onnx --data cifar10

    Example: simnets export runs/cifar10/model.safetensors --out simnet2-int8.onnx --data cifar10 --int8

    Example: simnets export runs/cifar10/model.safetensors --to c --out simnet2.c

    Example: simnets export runs/cifar10/model.safetensors --to web --out page --data cifar10

    Args:
        file: Weights, as `simnets train` leaves them, or the name of some from `simnets models`.
        to: Format.
        out: The file (for web: the folder) to write; if not given, beside the weights file, or here for
            weights in the box.
        data: Data set whose test images compare accuracy and are the page's examples, and whose training
            images calibrate int8.
        int8: Quantise the weights (C), and the convolutions (ONNX, which needs --data).
        float_similarities: Of ONNX with int8: all similarities stay float, which is slower and loses next to
            nothing.
        opset: Version of ONNX's operators.
        overwrite: Replace what exists.
    """
    from simnets.deploy import export_c, export_onnx, export_web
    from simnets.models import list_weights, load, weights_file

    if to == "onnx" and int8 and data is None:
        raise SimNetsError("int8 needs training images for its calibration; give --data")
    if to == "web" and int8:
        raise SimNetsError("the page takes the network in floating point; leave --int8 out")
    if to != "onnx" and opset != 18:
        raise SimNetsError("opset is for --to onnx; leave it out")
    if float_similarities and not (to == "onnx" and int8):
        raise SimNetsError("float-similarities is for --to onnx with --int8; leave it out")
    model = load(weights_file(file, "file"))
    beside = Path(f"{file}.safetensors" if file in list_weights() else file)  # not into the package
    test = _load_for(model, data, "test") if data else None
    images = test.images if test else None
    report: Any
    if to == "web":
        report = export_web(
            model, out or beside.with_name(f"{beside.stem}-page"), examples=test, overwrite=overwrite
        )
    elif to == "c":
        report = export_c(
            model, out or beside.with_suffix(".c"), int8=int8, images=images, test=test, overwrite=overwrite
        )
    else:
        report = export_onnx(
            model,
            out or beside.with_suffix(".onnx"),
            opset=opset,
            images=images,
            calibration=_load_for(model, data, "train").images if data and int8 else None,
            float_similarities=float_similarities,
            test=test,
            overwrite=overwrite,
        )
    print("\n".join(report.lines()))


def benchmark(
    networks: Positional[tuple[str, ...]],
    engines: tuple[str, ...] = (),
    batches: tuple[int, ...] = (1, 64, 256),
    threads: tuple[int, ...] = (1, 0),
    rounds: int = 15,
    clock: Literal["wall", "processor"] = "wall",
    data: Annotated[str | None, arg(metavar="NAME")] = None,
    out: Annotated[Path | None, arg(metavar="FOLDER")] = None,
) -> None:
    """Time networks side by side, in torch, compiled and in ONNX Runtime.

    Example: simnets benchmark simnet2 caffe_quick --batches 1 64 --threads 1

    Args:
        networks: Names from `simnets models`, or weights files.
        engines: eager, optimized, compile, onnx, int8, training; all of them if not given.
        batches: Images in a batch; 1 measures latency, more measures throughput.
        threads: Numbers of threads; 0 is all processors.
        rounds: How often every network takes its turn.
        clock: Time on the wall, or time that this process was running (for one thread).
        data: Data set on whose test images the accuracy of weights files is measured.
        out: Folder for benchmark.json and, where accuracies are known, benchmark.png.
    """
    from rich.progress import Progress

    from simnets.data import load_dataset
    from simnets.deploy import benchmark as run_benchmark
    from simnets.deploy.engines import ENGINES
    from simnets.training.files import write_whole, writing

    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("", total=None)

        def show(done: int, total: int, text: str) -> None:
            progress.update(task, completed=done, total=total, description=text)

        report = run_benchmark(
            networks,
            engines=engines or tuple(ENGINES),
            batches=batches,
            threads=threads,
            rounds=rounds,
            clock=clock,
            test=load_dataset(data, "test") if data else None,
            progress=show,
        )
    _console().print(report.table())
    if out is not None:
        with writing(out):
            out.mkdir(parents=True, exist_ok=True)
        write_whole(out / "benchmark.json", report.to_json())
        if any(network.accuracy is not None for network in report.networks):
            write_whole(out / "benchmark.png", report.plot())


def _together(option: str, given: Sequence[list[str]]) -> list[str]:
    """The values of an option that may be given several times; with no value it would mean everything."""
    if [] in given:
        raise SimNetsError(f"{option} names nothing; give at least one name, or leave it out for all")
    return [*chain(*given)]


def reproduce(
    what: Positional[
        Literal["two-layer", "compact", "plus", "ablation", "single-layer", "three-layer", "all", "report"]
    ],
    epochs: Annotated[int | None, arg(metavar="N")] = None,
    seeds: Annotated[int | None, arg(metavar="N")] = None,
    datasets: Names = (),
    networks: Names = (),
    variants: Names = (),
    budget_hours: Annotated[float | None, arg(metavar="HOURS")] = None,
    results: Annotated[Path, arg(metavar="DIR")] = Path("results"),
    runs: Annotated[Path, arg(metavar="DIR")] = Path("runs"),
    device: Device = "auto",
    amp: Literal["off", "bf16"] = "off",
    threads: Annotated[int, arg(metavar="N")] = 0,
    ship: bool = False,
) -> None:
    """Run an experiment of the paper (section 6), or report what the experiments gave.

    Stopped or killed, the same command goes on where it was: network by network, epoch by epoch.

    Example: simnets reproduce two-layer --datasets cifar10 --seeds 3 --budget-hours 6

    Example: simnets reproduce report

    Args:
        what: An experiment, all of them, or the report on the results that are there.
        epochs: Passes over the training images, instead of the experiment's own number.
        seeds: How many seeds each network is trained with, instead of the experiment's own number.
        datasets: Only these data sets.
        networks: Only these networks.
        variants: Only these variants of the networks; plain is the one without a variant.
        budget_hours: Stop after this time, saved, to go on later.
        results: Where a JSON file an experiment, the tables and the figures are kept.
        runs: Where each training has its folder.
        device: Where to train.
        amp: bf16 runs convolutions in bfloat16, about twice as fast where the processor multiplies so.
        threads: CPU threads; 0 leaves it to torch.
        ship: With `report`: also copy the final weights into the package, with a model card each.
    """
    import time

    from simnets import experiments
    from simnets.training.display import display_for

    console = _console()
    if ship and what != "report":
        raise SimNetsError("--ship goes with `simnets reproduce report`")
    if what == "report":
        if ship:
            names = experiments.ship(results, runs)
            console.print(f"weights in the package: {', '.join(names)}", highlight=False)
        readme = Path("README.md")
        for path in experiments.report(results, readme if _has_results(readme) else None):
            console.print(str(path), highlight=False, soft_wrap=True)
        return
    if budget_hours is not None and not budget_hours > 0:
        raise SimNetsError(f"budget_hours is {budget_hours}; expected a positive number")
    deadline = None if budget_hours is None else time.monotonic() + 3600 * budget_hours
    chosen = [one for one in experiments.EXPERIMENTS.values() if what in ("all", one.name)]
    for experiment in chosen:
        done = experiments.run(
            experiment,
            experiments.trials_of(
                experiment,
                epochs=epochs,
                seeds=seeds,
                datasets=_together("--datasets", datasets),
                networks=_together("--networks", networks),
                variants=_together("--variants", variants),
                among=chosen,
            ),
            results=results,
            runs=runs,
            deadline=deadline,
            device=device,
            amp=None if amp == "off" else amp,
            threads=threads,
            display=lambda: display_for(console),
        )
        if not done:
            return


def _has_results(readme: Path) -> bool:
    return readme.is_file() and "<!-- results: begin" in readme.read_text()


def data_fetch(name: Positional[str], root: Path | None = None) -> None:
    """Download an official data set; goes on where it broke off.

    Example: simnets data fetch cifar10

    Args:
        name: cifar10, cifar100 or svhn.
        root: Folder of the data sets. Default: $SIMNETS_DATA, else the user's cache.
    """
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TaskID,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    from simnets.data import fetch

    columns = (
        *(TextColumn("{task.description}"), BarColumn(), DownloadColumn()),
        *(TransferSpeedColumn(), TimeRemainingColumn()),
    )
    with Progress(
        *columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()
    ) as progress:
        tasks: dict[str, TaskID] = {}

        def show(file: str, done: int, total: int) -> None:
            if file not in tasks:
                tasks[file] = progress.add_task(file, total=total)
            progress.update(tasks[file], completed=done)

        folder = fetch(name, root, show)
    print(folder)


def data_check(name: Positional[str], root: Path | None = None) -> int:
    """Say what is in a data set and what is wrong with it.

    Example: simnets data check cifar10

    Args:
        name: Name or path of the data set.
        root: Folder of the data sets. Default: $SIMNETS_DATA, else the user's cache.
    """
    from simnets.data import check

    report = check(name, root)
    print("\n".join(report.lines))
    return 0 if report.ok else 2


COMMANDS: dict[str, Callable[..., Any]] = {
    "train": train,
    "pretrain": pretrain,
    "evaluate": evaluate,
    "predict": predict,
    "inspect": inspect,
    "models": models,
    "export": export,
    "benchmark": benchmark,
    "reproduce": reproduce,
    "data fetch": data_fetch,
    "data check": data_check,
}


# -- printing --------------------------------------------------------------------------------------------


def _named_or_loaded(model: str) -> "ImageClassifier":
    from simnets.models import create_model, list_models, load, weights_file

    return create_model(model) if model in list_models() else load(weights_file(model, "model"))


def _load_for(model: "ImageClassifier", data: str, split: str) -> "ImageDataset":
    """The data set; pictures in a folder are brought to the network's size, other data sets have theirs."""
    from simnets.data.load import load_dataset, locate

    size = model.spec.input_shape[-1] if locate(data)[0] == "folder" else None
    return load_dataset(data, split, image_size=size)


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False))


def _print_evaluation(found: "Evaluation") -> None:
    console = _console()
    console.print(
        f"accuracy {found.accuracy:.2%} on {found.images:,} images  "
        f"loss {found.loss:.4f}  calibration error {found.calibration_error:.2%}",
        highlight=False,
    )
    table = Table(title="true class (rows) and predicted class (columns)", title_justify="left")
    table.add_column("class")
    table.add_column("accuracy", justify="right")
    shown = len(found.classes) <= 20
    for name in found.classes if shown else ():
        table.add_column(name, justify="right")
    for name, share, row in zip(found.classes, found.per_class, found.confusion, strict=True):
        counts = [str(count) if count else "·" for count in row] if shown else []
        table.add_row(name, "–" if share != share else f"{share:.1%}", *counts)
    console.print(table)
