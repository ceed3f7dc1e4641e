"""Starting values of the baselines."""

from __future__ import annotations

from torch import nn


def he_normal(layer: nn.Conv2d | nn.Linear, *, last: bool = False) -> None:
    """Normal weights with variance 2/fan-in (He et al. 2015), 1/fan-in for the last layer; no biases."""
    nn.init.kaiming_normal_(layer.weight, nonlinearity="linear" if last else "relu")
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
