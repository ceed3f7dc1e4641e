"""A SimNet layer at the end of an ordinary ConvNet: templates and MEX instead of a dense layer.

Trains both on scikit-learn's digits for a few epochs, and prints their accuracy on the digits held out.

    python examples/layer_in_your_network.py
"""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import simnets
from simnets.data import batches, load_dataset

EPOCHS = 4
train, test = load_dataset("digits", "train"), load_dataset("digits", "test")


def network(head: nn.Module) -> nn.Sequential:
    """Digits (N, 1, 8, 8) to ten scores. Templates want features of one size: hence BatchNorm."""
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(16 * 3 * 3, 32), nn.BatchNorm1d(32), head),
    )


def fit(net: nn.Sequential) -> None:
    optimizer = torch.optim.Adam(net.train().parameters(), lr=0.01)
    for epoch in range(EPOCHS):
        for images, labels in batches(train, 50, epoch=epoch):
            optimizer.zero_grad()
            cross_entropy(net(images / 255), labels).backward()
            optimizer.step()


@torch.no_grad()
def accuracy(net: nn.Sequential) -> float:
    return (net.eval()(test.images / 255).argmax(1) == test.labels).float().mean().item()


torch.manual_seed(0)
dense = network(nn.Linear(32, 10))
templates = nn.Sequential(simnets.nn.Similarity(32, 20, p_mode="learned"), simnets.nn.Mex(20, 10))
simnet = network(templates)
for name, net in (("dense head ", dense), ("SimNet head", simnet)):
    fit(net)
    print(f"{name}: {accuracy(net):.1%} of the digits held out")
print(f"the order that was learned: p = {templates[0].p:.2f}")
