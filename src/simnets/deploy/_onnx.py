"""The optional packages of ONNX, imported when they are needed."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor

from simnets.errors import SimNetsError


def require(module: str) -> Any:
    """The module `onnx`, `onnxruntime` or `onnxscript`, or one of their parts."""
    try:
        return importlib.import_module(module)
    except ImportError:
        package = module.split(".")[0]
        raise SimNetsError(
            f"the package {package} is not installed, and ONNX needs it; pip install simnets[onnx]"
        ) from None


def session(model: bytes, threads: int = 1) -> Any:
    """An ONNX Runtime session on the CPU; threads 0 is all of them."""
    runtime = require("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    return runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def check_images(name: str, images: Tensor, shape: tuple[int, ...]) -> None:
    """Refuse what is not uint8 images of this shape, or none at all."""
    if images.dtype != torch.uint8 or tuple(images.shape[1:]) != tuple(shape):
        expected = ", ".join(str(n) for n in shape)
        given = f"{images.dtype} {tuple(images.shape)}"
        raise SimNetsError(f"{name} are {given}, expected uint8 (N, {expected}) for this network")
    if len(images) == 0:
        raise SimNetsError(f"{name} are empty; give at least one, better some hundred")
