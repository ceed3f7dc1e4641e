"""What every network of the registry is: images in, class scores out, nothing else to know."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from simnets.errors import SimNetsError
from simnets.models.spec import Spec


class ImageClassifier(nn.Module):
    """A network that takes images as they are and normalises them itself.

    `forward` takes (N, C, H, W), uint8 or floating point in [0, 1], and returns scores (N, k). The pixel
    statistics are buffers, so that the weights file is all that anyone needs to use the network.
    A subclass writes `scores`, which sees normalised images.

    Example:
        >>> import torch, simnets
        >>> model = simnets.create_model("simnet_mlpconv", input_shape=(1, 8, 8))
        >>> model(torch.zeros(2, 1, 8, 8, dtype=torch.uint8)).shape
        torch.Size([2, 10])
    """

    spec: Spec
    pixel_mean: Tensor
    pixel_std: Tensor

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        self.spec = spec
        self._classes = tuple(str(index) for index in range(spec.num_classes))
        channels = spec.input_shape[0]
        # about right for natural images, until `set_pixel_statistics` is told better
        self.register_buffer("pixel_mean", torch.full((channels,), 0.5))
        self.register_buffer("pixel_std", torch.full((channels,), 0.25))

    def current_spec(self) -> Spec:
        """`spec` with the numbers that training has changed, such as p and β, as they are now."""
        return self.spec

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes, in the order of the scores."""
        return self._classes

    @classes.setter
    def classes(self, names: Sequence[str]) -> None:
        good = isinstance(names, list | tuple) and all(isinstance(name, str) for name in names)
        if not good or len(names) != self.spec.num_classes:
            raise SimNetsError(f"classes is {names!r:.80}, expected {self.spec.num_classes} names")
        self._classes = tuple(names)

    def set_pixel_statistics(self, mean: Iterable[float] | Tensor, std: Iterable[float] | Tensor) -> None:
        """Mean and standard deviation of each channel, of images in [0, 1]."""
        for name, values, buffer in (("mean", mean, self.pixel_mean), ("std", std, self.pixel_std)):
            given = torch.as_tensor(values if isinstance(values, Tensor) else list(values))
            if given.shape != buffer.shape or not bool(given.isfinite().all()):
                expected = f"expected {buffer.numel()} finite numbers, one a channel"
                raise SimNetsError(f"{name} of the pixels has shape {tuple(given.shape)}, {expected}")
            if name == "std" and not bool((given > 0).all()):
                raise SimNetsError(f"std of the pixels is {given.tolist()}, expected positive numbers")
            buffer.copy_(given)

    def normalise(self, images: Tensor) -> Tensor:
        """(pixel − mean) / std for each channel, from uint8 or from floating point in [0, 1]."""
        if images.shape[1:] != torch.Size(self.spec.input_shape):
            expected = ", ".join(str(n) for n in self.spec.input_shape)
            raise SimNetsError(f"images have shape {tuple(images.shape)}, this network takes (N, {expected})")
        dtype = self.pixel_mean.dtype
        if images.dtype == torch.uint8:
            x = images.to(dtype) / 255
        elif images.is_floating_point():
            x = images.to(dtype)
        else:
            raise SimNetsError(f"images are {images.dtype}, expected uint8, or floating point in [0, 1]")
        per_channel = (-1,) + (1,) * (x.dim() - 2)
        return (x - self.pixel_mean.view(per_channel)) / self.pixel_std.view(per_channel)

    def scores(self, x: Tensor) -> Tensor:
        """Class scores of normalised images."""
        raise NotImplementedError

    def forward(self, images: Tensor) -> Tensor:
        """Class scores (N, k) of images (N, C, H, W)."""
        return self.scores(self.normalise(images))
