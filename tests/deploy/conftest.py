"""A network that has learned something, for tests of what exports do to its accuracy."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from simnets.data import load_dataset
from simnets.models import DeepSimNet, DeepSimNetSpec, LayerSpec


@pytest.fixture(scope="session")
def trained() -> DeepSimNet:
    """Two layers on digits, with two seconds of Adam; the first is padded, so that maps and image differ."""
    torch.manual_seed(0)
    layers = (
        LayerSpec(whitened=9, templates=16, field=3, padding=1, pool=2),
        LayerSpec(whitened=24, templates=32, field=3),
    )
    model = DeepSimNetSpec(input_shape=(1, 8, 8), layers=layers).build()
    model.scale = 8.0
    train = load_dataset("digits", "train")
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(150):
        chosen = torch.randint(len(train), (100,))
        loss = F.cross_entropy(model(train.images[chosen]), train.labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.scale = 0.4  # the same classes from scores of a few dozen, of which float32 holds 1e-5
    model.fold()
    return model.eval()
