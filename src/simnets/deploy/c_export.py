"""`export_c`: a network as one C99 file, compiled and compared with torch before it is written."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from simnets.data import ImageDataset
from simnets.deploy._onnx import check_images
from simnets.deploy.c_int8 import rounded
from simnets.deploy.c_source import Source, c_source
from simnets.deploy.comparison import TOLERANCE, Comparison, check_target, compare
from simnets.deploy.inference import InferenceNetwork
from simnets.deploy.onnx_export import example_images
from simnets.deploy.optimize import optimize
from simnets.errors import SimNetsError
from simnets.models import ImageClassifier
from simnets.training.evaluate import require_same_classes
from simnets.training.files import write_whole

TIMEOUT = 600.0  # seconds, for the compiler and for all images
_BATCH = 250


@dataclass(frozen=True)
class Sizes:
    """What a compiler makes of a file: bytes of code, and of stack if all its functions were active."""

    compiler: str
    code: int | None
    stack: int | None


@dataclass(frozen=True)
class CReport:
    """What `export_c` wrote.

    size, weights, memory: bytes of the file, of the constants in it, and of its working memory.
    sizes, comparison: None where there was no compiler.
    """

    path: Path
    int8: bool
    size: int
    weights: int
    memory: int
    sizes: Sizes | None = None
    comparison: Comparison | None = None

    def lines(self) -> list[str]:
        """What a person wants to know, a line each."""
        kind = "int8 weights" if self.int8 else "float"
        lines = [f"{self.path}: C99, {kind}, {_kb(self.size)} of source"]
        flash, ram = f"flash: weights {_kb(self.weights)}", f"RAM: working memory {_kb(self.memory)}"
        if self.sizes is not None and self.sizes.code is not None:
            flash = f"{flash} + code {_kb(self.sizes.code)} ({self.sizes.compiler})"
        if self.sizes is not None and self.sizes.stack is not None:
            ram = f"{ram} + stack at most {_kb(self.sizes.stack)}"
        lines += [flash, ram]
        found = self.comparison
        if found is None:
            return [*lines, "not compared with torch: no C compiler was found ($CC, cc, gcc, clang)"]
        return [*lines, *found.compared("C")]


def export_c(
    model: ImageClassifier,
    path: str | os.PathLike[str],
    *,
    int8: bool = False,
    images: Tensor | None = None,
    test: ImageDataset | None = None,
    overwrite: bool = False,
) -> CReport:
    """Write `model` as one C99 file with its weights inside: no library but libm, no heap.

    It defines `void simnets_classify(const uint8_t image[], float scores[])`, where an image has its channels
    first. The computation is that of `optimize(model)`, row by row. Before anything is written, the file is
    compiled ($CC, cc, gcc or clang) and its scores of `images` are compared with torch's; a file that differs
    is refused. Without a compiler it is written all the same, and the report says so.

    Every SimNet can be exported, with any p and β, and the baselines that are a chain of layers.

    Args:
        int8: weights of 8 bits and a scale for each output; arithmetic stays float (`c_int8`).
        images: uint8 images to compare on; digits brought to the network's size if not given.
        test: labelled images on which the accuracy before and after is measured.
        overwrite: replace a file that exists.

    Example:
        >>> import simnets
        >>> from simnets.deploy import export_c
        >>> report = export_c(simnets.create_model("simnet3_compact"), "simnet3_compact.c")
        >>> report.memory < 64_000
        True
    """
    target = Path(path)
    check_target(target, overwrite, "model.c")
    if not isinstance(model, ImageClassifier):
        raise SimNetsError(f"model is a {type(model).__name__}, expected a network of simnets")
    if test is not None:
        require_same_classes(model, test)
        images = test.images
    elif images is None:
        images = example_images(model.spec.input_shape)
    check_images("images", images, model.spec.input_shape)
    network = optimize(model).cpu().float()
    if int8:
        network = rounded(network)
    source = c_source(network, int8=int8)
    sizes, comparison = None, None
    if (compiler := _compiler()) is not None:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "network.c"
            file.write_text(source.text, encoding="ascii")
            _run([*compiler, "-std=c99", "-O2", "-fstack-usage", "-c", file.name], file.parent)
            sizes = _sizes(compiler, file, source)
            found = _c_scores(compiler, file, images, model.spec.num_classes)
        _check(network, images, found)
        comparison = compare(model, images, found, test)
    write_whole(target, source.text)
    return CReport(target, int8, len(source.text), source.weights, source.memory, sizes, comparison)


# ── the compiler ─────────────────────────────────────────────────────────────────────────────────────────


def _compiler() -> list[str] | None:
    if os.environ.get("SIMNETS_NO_COMPILER", "0") not in ("", "0"):
        return None
    for name in (os.environ.get("CC", ""), "cc", "gcc", "clang"):
        words = shlex.split(name)
        if words and shutil.which(words[0]):
            return words
    return None


def _run(command: list[str], folder: Path, data: bytes = b"") -> str:
    try:
        done = subprocess.run(
            command, input=data, capture_output=True, cwd=folder, timeout=TIMEOUT, check=True
        )
    except subprocess.CalledProcessError as error:
        words = error.stderr.decode(errors="replace").strip().splitlines() or [
            f"exit code {error.returncode}"
        ]
        reason = next((line for line in words if "error" in line), words[0])
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = str(error)
    else:
        return done.stdout.decode()
    raise SimNetsError(
        f"the C file could not be checked, {Path(command[0]).name}: {reason}; nothing was written "
        "(SIMNETS_NO_COMPILER=1 leaves the check out)"
    )


def _sizes(compiler: list[str], file: Path, source: Source) -> Sizes:
    """Code and stack of the object; on this machine's processor, with pointers of its size."""
    code, stack = None, None
    if shutil.which("size"):
        text, data, *_ = _run(["size", "network.o"], file.parent).splitlines()[1].split()
        code = int(text) + int(data) - source.weights
    usage = file.with_suffix(".su")
    if usage.exists():
        # no function calls itself, so a chain of calls has each of them at most once
        stack = sum(int(line.split("\t")[1]) for line in usage.read_text().splitlines())
    return Sizes(f"{Path(compiler[0]).name} -O2, {platform.machine()}", code, stack)


def _c_scores(compiler: list[str], file: Path, images: Tensor, classes: int) -> Tensor:
    """Class scores (N, k) from the object and the program at the end of the file."""
    program = file.with_suffix(".exe")
    flags = ["-std=c99", "-DSIMNETS_DECLARATIONS_ONLY", "-DSIMNETS_MAIN", "-o", program.name]
    _run([*compiler, *flags, file.name, file.with_suffix(".o").name, "-lm"], file.parent)
    lines = _run([str(program)], file.parent, images.contiguous().numpy().tobytes()).split("\n")
    scores = [[float(number) for number in line.split()] for line in lines if line]
    return torch.tensor(scores).reshape(len(images), classes)


# ── the comparison ───────────────────────────────────────────────────────────────────────────────────────


def _check(network: InferenceNetwork, images: Tensor, found: Tensor) -> None:
    """The same network in torch, with int8 weights if the file has them, must have the same scores."""
    with torch.no_grad():
        expected = torch.cat([network(batch) for batch in torch.split(images, _BATCH)])
    # images unlike all others have scores in the thousands, beside which nothing of the rest would show
    scale = expected.abs().amax(1)
    allowed = TOLERANCE * scale.clamp(min=scale.median())
    difference = (expected - found).abs().amax(1)
    if not bool((difference <= allowed).all()):
        raise SimNetsError(
            f"model cannot be exported: scores of the C file and torch differ by "
            f"{difference.max():.2g}, they are up to {scale.max():.3g}; nothing was written"
        )


def _kb(size: int) -> str:
    return f"{size / 1000:,.1f} KB"
