"""A data set, a network and a recipe so small that a whole training takes a moment."""

import hashlib

import torch
from safetensors.torch import load_file

from simnets.data import ImageDataset
from simnets.models import create_model
from simnets.training import Recipe

RECIPE = Recipe(
    epochs=4,
    batch_size=16,
    validation=0.2,
    lr=0.002,
    ema=0.9,
    flip=True,
    shift=1,
    cutout=2,
    warp=0.1,
    label_smoothing=0.1,
)
CLASSES = ("upright", "lying")


def data(count=80, seed=0):
    """Images with upright or lying stripes."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 2
    images = torch.randint(0, 120, (count, 1, 8, 8), generator=generator, dtype=torch.uint8)
    images[labels == 0, :, :, ::2] += 130
    images[labels == 1, :, ::2, :] += 130
    return ImageDataset(images, labels, CLASSES, "stripes")


def digest(file):
    """Checksum of the tensors of a weights file, whose metadata have no fixed order."""
    tensors = load_file(file)
    content = b"".join(k.encode() + tensors[k].numpy().tobytes() for k in sorted(tensors))
    return hashlib.sha256(content).hexdigest()


def network(seed=0, noise=0.2):
    """With multiplicative noise, so that the order of random numbers matters."""
    torch.manual_seed(seed)
    model = create_model(
        "simnet_mlpconv", 2, input_shape=(1, 8, 8), field=3, whitened=4, templates=6, noise=noise
    )
    model.classes = CLASSES
    return model
