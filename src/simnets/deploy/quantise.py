"""`quantise`: an ONNX graph with int8 convolutions, calibrated on training images.

Convolutions run on 8-bit activations and 7-bit weights, with a scale for each output channel. The eighth bit
of the weights is left out because processors without a dot product of bytes add pairs of products in 16 bits,
where weights of full range overflow, which leaves little of a network.

What is exponentiated stays float: the last similarity, where half a step of error becomes a factor of
exp(β·s), and after it the classification MEX and global pooling, which are hardly any work. So does the first
convolution, unless it is the only one: whitening takes small differences between neighbouring pixels, for
which 7 bits a weight are too few, and with three channels there is little to gain. So does every square y·y,
between a layer's 8-bit y and the next convolution's 8-bit y².

With `float_similarities` all similarities stay float, and so does the pooling after them. Where templates lie
far away, u·(y − z)² is a small difference of large terms with long tails, and 8 bits keep little of it; but
run-times lose time where int8 and float operators alternate.

Ranges are the 0.05 and 99.95 percentiles of what is seen: similarities have long tails, and with the farthest
of them in range too few steps are left for the rest. How these were chosen: docs/decisions/0006-inference.md.
"""

from __future__ import annotations

import contextlib
import io
import logging
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from simnets.deploy._onnx import check_images, require
from simnets.errors import SimNetsError

PERCENTILE = 99.95
# Enough for percentiles of maps with hundreds of locations; all of their values are held in memory.
MOST_IMAGES = 512
_BATCH = 64
_PRODUCTS = ("Conv", "Gemm")
_QUANTISED = (*_PRODUCTS, "MaxPool", "AveragePool", "Add")


def quantise(content: bytes, calibration: Tensor, *, float_similarities: bool = False) -> bytes:
    """The graph of `to_onnx` with int8 convolutions.

    calibration: uint8 training images; of more than 512, that many are taken at equal distances.
    float_similarities: keep all similarities in float, not only the last; slower, and next to no loss.
    """
    onnx = require("onnx")
    tools = require("onnxruntime.quantization")
    model = onnx.load_from_string(content)
    shape = tuple(size.dim_value for size in model.graph.input[0].type.tensor_type.shape.dim[1:])
    images = _chosen(calibration, shape)
    excluded = exponentiated_nodes(model.graph)
    if float_similarities:
        excluded |= similarity_nodes(model.graph)
    products = [node.name for node in model.graph.node if node.op_type in _PRODUCTS]
    if set(products[1:]) - excluded:
        excluded.add(products[0])
    if set(products) <= excluded:
        raise SimNetsError(
            "nothing to quantise: it has nothing but similarities that stay float; export it without int8"
        )
    with tempfile.TemporaryDirectory() as folder, _silent():
        source, target = Path(folder) / "float.onnx", Path(folder) / "int8.onnx"
        source.write_bytes(content)
        tools.quantize_static(
            source,
            target,
            _Reader(images),
            quant_format=tools.QuantFormat.QDQ,
            op_types_to_quantize=list(_QUANTISED),
            nodes_to_exclude=sorted(excluded),
            per_channel=True,
            reduce_range=True,
            activation_type=tools.QuantType.QUInt8,
            weight_type=tools.QuantType.QInt8,
            calibrate_method=tools.CalibrationMethod.Percentile,
            extra_options={"CalibPercentile": PERCENTILE},
        )
        quantised = onnx.load(target)
    props = {prop.key: prop.value for prop in model.metadata_props}
    props["int8"] = f"{len(images)} calibration images, percentile {PERCENTILE}"
    quantised.ClearField("metadata_props")
    onnx.helper.set_model_props(quantised, props)
    quantised.producer_name, quantised.producer_version = model.producer_name, model.producer_version
    result: bytes = quantised.SerializeToString()
    return result


def _chosen(calibration: Tensor, shape: tuple[int, ...]) -> Tensor:
    check_images("calibration images", calibration, shape)
    count = len(calibration)
    used = min(count, MOST_IMAGES)
    used -= used % min(used, _BATCH)  # the tools want whole batches
    # at equal distances: data sets are often sorted by class
    return calibration[torch.linspace(0, count - 1, used).round().long()]


def exponentiated_nodes(graph: Any) -> set[str]:
    """The names of the convolutions that are exponentiated, and of everything after them."""
    producer = {output: node for node in graph.node for output in node.output}
    found: set[str] = set()
    open_ends = [name for node in graph.node if node.op_type == "Exp" for name in node.input]
    seen: set[str] = set()
    while open_ends:
        name = open_ends.pop()
        if name in seen or name not in producer:
            continue
        seen.add(name)
        node = producer[name]
        if node.op_type in _PRODUCTS:
            found.add(node.name)
        else:
            open_ends += node.input
    reached: set[str] = set()
    for node in graph.node:  # which ONNX keeps in an order in which everything is computed before it is used
        if node.name in found or reached & set(node.input):
            reached |= set(node.output)
            found.add(node.name)
    return found


def similarity_nodes(graph: Any) -> set[str]:
    """The names of the products of y and y², of |y − z|, and of all that follows up to the next product."""
    squares = [node for node in graph.node if node.op_type == "Mul" and node.input[0] == node.input[1]]
    operands = {name for node in squares for name in (*node.input, *node.output)}
    found: set[str] = set()
    reached: set[str] = set()
    for node in graph.node:
        if node.op_type in _PRODUCTS:
            similar = node.input[0] in operands
        else:
            similar = node.op_type == "Abs" or bool(reached & set(node.input))
        if similar:
            reached |= set(node.output)
            found.add(node.name)
    return found


class _Reader:
    """What onnxruntime.quantization calls a CalibrationDataReader."""

    def __init__(self, images: Tensor) -> None:
        self._batches: Iterator[Tensor] = iter(torch.split(images, _BATCH))

    def get_next(self) -> dict[str, Any] | None:
        batch = next(self._batches, None)
        return None if batch is None else {"images": batch.numpy()}

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return ({"images": batch.numpy()} for batch in self._batches)


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Without the progress that the tools print, and the advice that they log."""
    logger = logging.getLogger()
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        logger.setLevel(level)
