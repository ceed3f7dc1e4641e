import numpy as np
import torch
from torch import nn

from simnets.training.averaging import Average


def test_average_follows_its_formula():
    model = nn.Linear(3, 2)
    average = Average(model, decay=0.9)
    expected = model.weight.detach().double().numpy().copy()
    rng = np.random.default_rng(0)
    for t in range(1, 200):
        values = rng.normal(size=(2, 3))
        with torch.no_grad():
            model.weight.copy_(torch.from_numpy(values))
        average.update()
        decay = min(0.9, (1 + t) / (10 + t))
        expected = decay * expected + (1 - decay) * values
    np.testing.assert_allclose(average.values["weight"].numpy(), expected, rtol=1e-5, atol=1e-6)


def test_swap_exchanges_and_exchanges_back():
    model = nn.Linear(3, 2)
    before = model.weight.detach().clone()
    average = Average(model, decay=0.5)
    with torch.no_grad():
        model.weight.add_(1)
    average.update()
    averaged = average.values["weight"].clone()
    average.swap()
    assert torch.equal(model.weight, averaged)
    average.swap()
    assert torch.equal(model.weight, before + 1)
    assert torch.equal(average.values["weight"], averaged)


def test_shared_parameters_infinite_buffers_and_fixed_values():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].weight = model[0].weight
    model.register_buffer("beta", torch.tensor(torch.inf))
    model[1].bias.requires_grad_(False).fill_(-torch.inf)
    average = Average(model, decay=0.5)
    start = model[0].weight.detach().clone()
    with torch.no_grad():
        model[0].weight.add_(1)
    average.update()
    decay = 2 / 11
    average.swap()
    torch.testing.assert_close(model[0].weight.detach(), start + (1 - decay))
    assert model[1].weight is model[0].weight
    assert model.beta == torch.inf
    assert model[1].bias.tolist() == [-torch.inf] * 2
