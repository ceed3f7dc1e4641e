"""Pre-training by itself: images in, a folder with the started network and what was found out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from simnets.data import load_dataset, pixel_statistics
from simnets.errors import SimNetsError
from simnets.models import DeepSimNetSpec, ImageClassifier, model_spec, save
from simnets.pretrain import PretrainConfig, PretrainReport, pretrain_model, pretrain_structure
from simnets.training.files import writing
from simnets.training.run import default_model
from simnets.training.seeds import seed_for


def pretrain(
    model: str | None,
    data: str | Path,
    out: str | Path,
    config: PretrainConfig | None = None,
    *,
    auto: bool = False,
    image_size: int | None = None,
    progress: Callable[[str], None] | None = None,
) -> tuple[ImageClassifier, PretrainReport]:
    """Start the network `model` from the images of `data`, without their labels (section 5).

    With `auto` the images also choose how many channels each layer has. The folder `out` gets
    model.safetensors, pretrain.json and a page of pictures for each layer.
    """
    config = config or PretrainConfig()
    folder = Path(out)
    if (folder / "config.json").exists():
        raise SimNetsError(f"{folder} holds a training run; give --out another folder")
    dataset = load_dataset(data, "train", image_size=image_size)
    spec = model_spec(model or default_model(data), len(dataset.classes), input_shape=dataset.shape)
    if auto:
        if not isinstance(spec, DeepSimNetSpec):
            raise SimNetsError(f"auto chooses the channels of deep SimNets; {model} is a {spec.family}")
        structure = pretrain_structure(dataset.images, spec, config, progress=progress)
        network: ImageClassifier = structure.model
        report = structure.report
    else:
        torch.manual_seed(seed_for(config.seed, "model"))
        network = spec.build()
        network.set_pixel_statistics(*pixel_statistics(dataset.images))
        report = pretrain_model(network, dataset.images, config, progress=progress)
    network.classes = dataset.classes
    with writing(folder):
        report.save(folder)
    save(network, folder / "model.safetensors")
    return network, report
