"""A SimNet layer at the end of an ordinary ConvNet: templates and MEX instead of a dense layer.

Trains both heads on scikit-learn's digits for a few epochs, and prints accuracy on the digits held out.

    python examples/layer_in_your_network.py
"""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import simnets
from simnets.data import batches, load_dataset

EPOCHS = 4


def network(head: nn.Module) -> nn.Sequential:
    """Digits (N, 1, 8, 8) to ten scores; the head gets 32 features."""
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(16 * 3 * 3, 32), nn.LayerNorm(32), head),
    )


def train(net: nn.Sequential) -> None:
    torch.manual_seed(0)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    for epoch in range(EPOCHS):
        for images, labels in batches(load_dataset("digits", "train"), 50, seed=0, epoch=epoch):
            optimizer.zero_grad()
            cross_entropy(net(images / 255), labels).backward()
            optimizer.step()


def accuracy(net: nn.Sequential) -> float:
    test = load_dataset("digits", "test")
    with torch.no_grad():
        return (net(test.images / 255).argmax(1) == test.labels).float().mean().item()


torch.manual_seed(0)
dense = network(nn.Linear(32, 10))
simnet = network(nn.Sequential(simnets.nn.Similarity(32, 20, p_mode="learned"), simnets.nn.Mex(20, 10)))
# The templates start where the features are: no labels are needed for that.
simnets.pretrain_model(simnet, load_dataset("digits", "train").images / 255)
for name, net in (("dense head ", dense), ("SimNet head", simnet)):
    train(net)
    print(f"{name}: {accuracy(net):.1%} of the digits held out, {sum(p.numel() for p in net[-1].parameters())} parameters")
print(f"the order that was learned: p = {simnet[-1][0].p:.2f}")
