"""The ways to run a network that `benchmark` compares."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from simnets.deploy._onnx import session
from simnets.deploy.onnx_export import example_images, to_onnx
from simnets.deploy.optimize import optimize
from simnets.deploy.quantise import quantise
from simnets.errors import SimNetsError
from simnets.models import ImageClassifier
from simnets.training.evaluate import arranged

Run = Callable[[], object]


class Contestant:
    """A network, ready to be run by every engine; what takes long to make is made once."""

    def __init__(self, name: str, model: ImageClassifier) -> None:
        self.name = name
        self.model = model.eval()
        self._onnx: dict[bool, bytes] = {}

    def prepare(self, engine: str, images: Tensor, threads: int) -> Run:
        """One batch in `engine`, on a number of threads that torch has been told already."""
        if engine not in ENGINES:
            raise SimNetsError(f"engine is {engine!r}, expected one of {', '.join(ENGINES)}")
        return ENGINES[engine](self, images, threads)

    def onnx(self, int8: bool) -> bytes:
        """The network as ONNX. How fast int8 is does not depend on what it was calibrated with."""
        if int8 not in self._onnx:
            shape = self.model.spec.input_shape
            self._onnx[int8] = (
                quantise(self.onnx(False), example_images(shape)) if int8 else to_onnx(self.model)
            )
        return self._onnx[int8]


def _eager(contestant: Contestant, images: Tensor, threads: int) -> Run:
    return _without_gradient(contestant.model, images)


def _optimized(contestant: Contestant, images: Tensor, threads: int) -> Run:
    return _without_gradient(optimize(contestant.model), images)


def _compiled(contestant: Contestant, images: Tensor, threads: int) -> Run:
    # compiled code has the number of threads in it, so that none is shared between them
    torch.compiler.reset()
    return _without_gradient(torch.compile(optimize(contestant.model)), images)


def _without_gradient(network: Callable[[Tensor], Tensor], images: Tensor) -> Run:
    def run() -> Tensor:
        with torch.inference_mode():
            return network(images)

    return run


def _onnx(contestant: Contestant, images: Tensor, threads: int) -> Run:
    return _in_onnx_runtime(contestant.onnx(int8=False), images, threads)


def _int8(contestant: Contestant, images: Tensor, threads: int) -> Run:
    return _in_onnx_runtime(contestant.onnx(int8=True), images, threads)


def _in_onnx_runtime(content: bytes, images: Tensor, threads: int) -> Run:
    runner = session(content, threads)
    feed = {"images": images.numpy()}
    return lambda: runner.run(None, feed)


def _training(contestant: Contestant, images: Tensor, threads: int) -> Run:
    """Forward and backward; the optimiser's step, which no image makes longer, is left out."""
    model = copy.deepcopy(contestant.model).train()
    labels = torch.arange(len(images)) % model.spec.num_classes
    images = arranged(images)  # as the training loop has them

    def run() -> None:
        loss: Tensor = F.cross_entropy(model(images), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        model.zero_grad()

    return run


ENGINES: dict[str, Callable[[Contestant, Tensor, int], Run]] = {
    "eager": _eager,
    "optimized": _optimized,
    "compile": _compiled,
    "onnx": _onnx,
    "int8": _int8,
    "training": _training,
}
