"""int8 weights for the C export: a step for each output, float arithmetic, no calibration.

Flash is what a microcontroller has too little of; its working memory is small already (`c_source`), and in
portable C an integer multiply-add is not faster than a float one where there is a floating-point unit. So the
weights are 8 bits wide, and what they are multiplied with stays float: there are no ranges to choose.

Rounding keeps the sum of a filter over its window, for each input channel, within half a step. Patches are
mostly flat, and whitening filters take the flat part away; errors that add up over the window would let some
of it through. In a `simnet2` trained for two epochs this brings the images whose first class changes from
3.5 % to 1.2 %.

Biases, constants and the classification MEX stay float: they are small, and the latter is exponentiated.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from simnets.deploy.inference import (
    ContrastConvolution,
    InferenceNetwork,
    LpSimilarity,
    SquaredSimilarity,
)

LARGEST = 127


def coded(filters: Tensor) -> tuple[Tensor, Tensor]:
    """Filters (n, C, h, w) as int8 and the step (n,) of each output: filters ≈ step·codes.

    Filters that are rounded already come out as they are.
    """
    exact = filters.detach().double().cpu()
    steps = exact.abs().amax((1, 2, 3)) / LARGEST
    steps[steps == 0] = 1.0
    levels = (exact / steps.view(-1, 1, 1, 1)).flatten(2)
    codes = levels.round()
    error = levels - codes
    excess = error.sum(2, keepdim=True).round()
    # as many as needed go to their other neighbour, those first that are nearest to it
    order = (error * excess.sign()).argsort(dim=2, descending=True, stable=True)
    rank = order.argsort(dim=2)
    codes += torch.where(rank < excess.abs(), excess.sign(), 0.0)
    return codes.view_as(exact).to(torch.int8), steps


def rounded(network: InferenceNetwork) -> InferenceNetwork:
    """A copy of an inference network with the weights that its int8 codes stand for."""
    network = copy.deepcopy(network)
    with torch.no_grad():
        for module in network.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                _round(module.weight)
            elif isinstance(module, ContrastConvolution):
                _round(module.filters)
            elif isinstance(module, LpSimilarity):
                shape = (len(module.templates), -1, *module.kernel_size)
                for weights in (module.templates, module.weights):
                    _round(weights, shape)
            elif isinstance(module, SquaredSimilarity):
                _round(module.cross)
                _round(module.square)
    return network


def _round(weights: Tensor, shape: tuple[int, ...] | None = None) -> None:
    view = weights.reshape(shape or (*weights.shape, *[1] * (4 - weights.dim())))
    codes, steps = coded(view)
    weights.copy_((codes * steps.view(-1, 1, 1, 1)).view_as(weights))
