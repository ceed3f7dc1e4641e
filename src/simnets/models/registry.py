"""The networks by name, with the paper's sizes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from itertools import pairwise
from pathlib import Path
from typing import Any

from simnets.errors import SimNetsError
from simnets.models.base import ImageClassifier
from simnets.models.caffe_quick import CaffeQuickSpec
from simnets.models.convnet1 import ConvNet1Spec
from simnets.models.convnet2 import ConvNet2Spec
from simnets.models.deep_simnet import DeepSimNetSpec, LayerSpec, SimNetMLPConvSpec
from simnets.models.files import load
from simnets.models.nin import NiNSpec
from simnets.models.resnet8 import ResNet8Spec
from simnets.models.simnet_mlp import SimNetMLPSpec
from simnets.models.spec import Spec

WEIGHTS = Path(__file__).resolve().parent.parent / "weights"
ACCURACIES = "accuracies.json"  # written with the weights, read by whoever lists them


@dataclass(frozen=True)
class Entry:
    """A registered network: what it is in a line, and its specification for images of a shape."""

    summary: str
    spec: Callable[[tuple[int, ...], int], Spec]


def _simnet_mlp(input_shape: tuple[int, ...], num_classes: int) -> Spec:
    return SimNetMLPSpec(input_shape=input_shape, num_classes=num_classes, templates=128)


def _reduced(channels: int, field: int, before: int) -> int:
    """Whitened channels: no more than a patch has coordinates."""
    return min(channels, field * field * before)


def _simnet_mlpconv(input_shape: tuple[int, ...], num_classes: int) -> Spec:
    layer = LayerSpec(whitened=_reduced(32, 5, input_shape[0]), templates=64)
    return SimNetMLPConvSpec(input_shape=input_shape, num_classes=num_classes, layers=(layer,))


def _simnet1(templates: int) -> Callable[[tuple[int, ...], int], Spec]:
    def spec(input_shape: tuple[int, ...], num_classes: int) -> Spec:
        # section 6.2: patches of 75 coordinates are whitened without reduction
        layer = LayerSpec(whitened=25 * input_shape[0], templates=templates)
        return SimNetMLPConvSpec(input_shape=input_shape, num_classes=num_classes, layers=(layer,))

    return spec


def _simnet2(input_shape: tuple[int, ...], num_classes: int) -> Spec:
    layers = (
        LayerSpec(whitened=_reduced(32, 5, input_shape[0]), templates=32, pool=3),
        LayerSpec(whitened=64, templates=64),
    )
    return DeepSimNetSpec(input_shape=input_shape, num_classes=num_classes, layers=layers)


def _simnet2_l1(input_shape: tuple[int, ...], num_classes: int) -> Spec:
    # the second layer then sees tails that grow with the distance, not with its square
    return _simnet2(input_shape, num_classes).replace(p=(1.0, 2.0))


def _simnet2_rectified(input_shape: tuple[int, ...], num_classes: int) -> Spec:
    # 32 thresholds more: what is unlike a template counts as nothing, which bounds what is squared next
    thresholds = {"rectify": (True, False), "bias_mode": ("learned", "none")}
    return _simnet2(input_shape, num_classes).replace(**thresholds)


def _simnet2_contrast(input_shape: tuple[int, ...], num_classes: int) -> Spec:
    # how light and how contrasted a patch is says little of what it shows, and takes up channels
    return _simnet2(input_shape, num_classes).replace(contrast=(0.1, 0.0))


def _simnet2_contrast_rectified(input_shape: tuple[int, ...], num_classes: int) -> Spec:
    return _simnet2_rectified(input_shape, num_classes).replace(contrast=(0.1, 0.0))


def _simnet4(input_shape: tuple[int, ...], num_classes: int) -> Spec:
    # the paper's budget for two layers spent on depth: the last templates see a whole image, not 15×15 of it
    layers = (
        LayerSpec(whitened=_reduced(16, 5, input_shape[0]), templates=24, pool=2),
        LayerSpec(whitened=32, templates=40, field=3, padding=1, pool=2),
        LayerSpec(whitened=48, templates=48, field=3, padding=1, pool=3, pool_stride=1),
        LayerSpec(whitened=56, templates=56, field=3, padding=1),
    )
    return DeepSimNetSpec(input_shape=input_shape, num_classes=num_classes, layers=layers)


def _separable(
    whitened: int, channels: tuple[int, ...], templates: int, *, field: int, padding: int
) -> Callable[[tuple[int, ...], int], Spec]:
    # A linear similarity, rectified, is what a ConvNet has, and costs half of an ℓ2 similarity; a filter for
    # each channel costs next to nothing beside W. What that saves makes a network deep and wide. The
    # classifier is a SimNet's: ℓ2 similarities and MEX.
    linear: dict[str, Any] = {
        "kind": "linear",
        "weights_mode": "none",
        "bias_mode": "learned",
        "rectify": True,
    }
    depthwise: dict[str, Any] = {"depthwise": True, "field": 3, "padding": 1}

    def spec(input_shape: tuple[int, ...], num_classes: int) -> Spec:
        first = _reduced(whitened, field, input_shape[0])
        layers = [
            LayerSpec(whitened=first, templates=channels[0], field=field, padding=padding, pool=2, **linear)
        ]
        for number, (before, after) in enumerate(pairwise(channels)):
            pool = 2 if number == 1 else 0
            layers.append(LayerSpec(whitened=before, templates=after, pool=pool, **depthwise, **linear))
        layers.append(LayerSpec(whitened=channels[-1], templates=templates, **depthwise))
        return DeepSimNetSpec(input_shape=input_shape, num_classes=num_classes, layers=tuple(layers))

    return spec


def _simnet3(channels: int, noise: float) -> Callable[[tuple[int, ...], int], Spec]:
    def spec(input_shape: tuple[int, ...], num_classes: int) -> Spec:
        layers = (
            LayerSpec(
                whitened=_reduced(channels, 5, input_shape[0]),
                templates=channels,
                padding=2,
                noise=noise,
                pool=3,
                pool_ceil=True,
            ),
            LayerSpec(
                whitened=channels,
                templates=channels,
                padding=2,
                noise=noise,
                pool=3,
                pool_ceil=True,
                pool_beta=0.0,
            ),
            LayerSpec(whitened=channels, templates=channels, field=3, padding=1, noise=noise),
        )
        return DeepSimNetSpec(input_shape=input_shape, num_classes=num_classes, layers=layers)

    return spec


def _simnet3_compact_rectified(input_shape: tuple[int, ...], num_classes: int) -> Spec:
    thresholds = {"rectify": (True, True, False), "bias_mode": ("learned", "learned", "none")}
    return _simnet3(10, 0.0)(input_shape, num_classes).replace(**thresholds)


def _convnet1(channels: int) -> Callable[[tuple[int, ...], int], Spec]:
    return lambda shape, k: ConvNet1Spec(input_shape=shape, num_classes=k, channels=channels)


ENTRIES: dict[str, Entry] = {
    "simnet_mlp": Entry("SimNet MLP on all pixels, 128 templates (section 3)", _simnet_mlp),
    "simnet_mlpconv": Entry("SimNet MLPConv, whitened to 32, 64 templates (section 4.1)", _simnet_mlpconv),
    **{
        f"simnet1_{n}": Entry(f"single-layer SimNet, {n} templates (section 6.2)", _simnet1(n))
        for n in (50, 100, 200, 400, 800)
    },
    "simnet2": Entry("two-layer SimNet (section 6.3)", _simnet2),
    "simnet2_l1": Entry("two-layer SimNet, ℓ1 in its first layer, ℓ2 in its second, ours", _simnet2_l1),
    "simnet2_contrast": Entry("two-layer SimNet on patches of equal contrast, ours", _simnet2_contrast),
    "simnet2_rectified": Entry("two-layer SimNet with thresholds between, ours", _simnet2_rectified),
    "simnet2_contrast_rectified": Entry(
        "two-layer SimNet on patches of equal contrast, with thresholds between, ours",
        _simnet2_contrast_rectified,
    ),
    "simnet2_plus": Entry(
        "a separable ConvNet with a SimNet for a classifier, in the budget of simnet2, ours",
        _separable(24, (32, 64, 96, 96, 112, 112), 64, field=5, padding=0),
    ),
    "simnet3": Entry("three-layer SimNet, 192 channels, noise (section 6.4)", _simnet3(192, 0.3)),
    "simnet3_compact": Entry("three-layer SimNet, 10 channels (section 6.4)", _simnet3(10, 0.0)),
    "simnet3_compact_rectified": Entry(
        "three-layer SimNet, 10 channels, with thresholds between, ours", _simnet3_compact_rectified
    ),
    "simnet3_compact_plus": Entry(
        "a separable ConvNet with a SimNet for a classifier, in the budget of simnet3_compact, ours",
        _separable(6, (16, 20, 24, 26, 26), 20, field=3, padding=1),
    ),
    "simnet4": Entry("four-layer SimNet in the budget of simnet2, ours", _simnet4),
    **{
        f"convnet1_{n}": Entry(f"single-layer ConvNet, {n} filters (section 6.2)", _convnet1(n))
        for n in (50, 100, 200, 400, 800, 1600, 3200)
    },
    "convnet2": Entry(
        "ConvNet with the geometry of simnet2, ours",
        lambda shape, k: ConvNet2Spec(input_shape=shape, num_classes=k),
    ),
    "caffe_quick": Entry(
        "Caffe's ConvNet (section 6.3)", lambda shape, k: CaffeQuickSpec(input_shape=shape, num_classes=k)
    ),
    "nin": Entry(
        "Network in Network (section 6.4)", lambda shape, k: NiNSpec(input_shape=shape, num_classes=k)
    ),
    "nin_compact": Entry(
        "Network in Network, 10 channels, no dropout (section 6.4)",
        lambda shape, k: NiNSpec(input_shape=shape, num_classes=k, channels=(10,) * 8, dropout=0.0),
    ),
    "resnet8": Entry(
        "ResNet-8 of MLPerf Tiny", lambda shape, k: ResNet8Spec(input_shape=shape, num_classes=k)
    ),
}


def list_models(pattern: str = "*") -> list[str]:
    """The names of all registered networks, or of those that match `pattern`, such as "simnet1_*"."""
    return [name for name in ENTRIES if fnmatchcase(name, pattern)]


def list_weights() -> list[str]:
    """The trained weights in the box, as "network-dataset"."""
    return sorted(path.stem for path in WEIGHTS.glob("*.safetensors"))


def weights_file(name: str | os.PathLike[str], argument: str = "weights") -> Path:
    """The file of trained weights: the name of some in the box, such as "simnet2-cifar10", or a path."""
    if str(name) in list_weights():
        return WEIGHTS / f"{name}.safetensors"
    if Path(name).is_file():
        return Path(name)
    if str(name) in ENTRIES:
        have = ", ".join(known for known in list_weights() if known.startswith(f"{name}-")) or "none"
        raise SimNetsError(
            f"{argument} is {str(name)!r}, a network without weights; in the box it has {have}"
        )
    raise SimNetsError(f"{argument} is {str(name)!r}, neither a file nor a name from `simnets models`")


def shipped_accuracies() -> dict[str, float]:
    """The weights in the box by name, each with its accuracy on the test images of its data set."""
    found: dict[str, float] = json.loads((WEIGHTS / ACCURACIES).read_text())
    return found


def model_spec(name: str, num_classes: int = 10, **overrides: Any) -> Spec:
    """The specification of a registered network, with some of its fields changed."""
    if name not in ENTRIES:
        raise SimNetsError(f"name of the network is {name!r}, expected one of {', '.join(ENTRIES)}")
    shape = overrides.pop("input_shape", (3, 32, 32))
    if not isinstance(shape, tuple | list) or not all(isinstance(n, int) for n in shape):
        raise SimNetsError(f"input_shape is {shape!r}, expected whole numbers such as (3, 32, 32)")
    return ENTRIES[name].spec(tuple(shape), num_classes).replace(**overrides)


def create_model(
    name: str,
    num_classes: int | None = None,
    weights: str | os.PathLike[str] | None = None,
    **overrides: Any,
) -> ImageClassifier:
    """A network by name, with starting values, or with trained weights.

    num_classes: 10, or what the weights have.
    weights: a data set whose weights are in the box, such as "cifar10", or the path of a .safetensors file.
    overrides: `input_shape=(channels, height, width)` and any field of the network's specification; for
        SimNets also the fields of `LayerSpec`, which then change every layer.

    Example:
        >>> import simnets
        >>> model = simnets.create_model("simnet2", num_classes=100, p=1.0)
        >>> [layer.p for layer in model.spec.layers]
        [1.0, 1.0]
    """
    if weights is None:
        return model_spec(name, 10 if num_classes is None else num_classes, **overrides).build()
    path = _weights_path(name, weights)
    model = load(path)
    overrides.setdefault("input_shape", model.spec.input_shape)
    expected = model_spec(name, model.spec.num_classes if num_classes is None else num_classes, **overrides)
    if expected != model.spec:
        raise SimNetsError(
            f"{path} holds another network than was asked for: {_difference(model.spec, expected)}"
        )
    return model


def _weights_path(name: str, weights: str | os.PathLike[str]) -> Path:
    shipped = WEIGHTS / f"{name}-{weights}.safetensors"
    if isinstance(weights, str) and os.sep not in weights and shipped.is_file():
        return shipped
    path = Path(weights)
    if path.is_file():
        return path
    have = ", ".join(list_weights()) or "none"
    raise SimNetsError(
        f"weights is {str(weights)!r}: {name} has no such weights in the box, and it is not a file; "
        f"in the box: {have}"
    )


def _difference(found: Spec, expected: Spec) -> str:
    if type(found) is not type(expected):
        return f"it is a {found.family}, not a {expected.family}"
    names = [f.name for f in fields(found) if getattr(found, f.name) != getattr(expected, f.name)]
    return "; ".join(f"{name} is {getattr(found, name)!r}, not {getattr(expected, name)!r}" for name in names)
