"""A network as one .safetensors file that knows its own specification. Reading it can execute nothing."""

from __future__ import annotations

import json
import os
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor
from torch.overrides import TorchFunctionMode

from simnets.errors import SimNetsError
from simnets.models.base import ImageClassifier
from simnets.models.spec import Spec

FORMAT = "1"


def save(model: ImageClassifier, path: str | os.PathLike[str]) -> None:
    """Write `model` to `path`, all of it or nothing.

    The file holds the state dict and, as metadata, the format's version, the specification, the names of
    the classes and the version of `simnets`. A network that is still in training keeps its λ and its
    preconditioners; call `fold()` before to store the paper's parameters only.

    Example:
        >>> import simnets, tempfile, os
        >>> path = os.path.join(tempfile.mkdtemp(), "model.safetensors")
        >>> simnets.save(simnets.create_model("simnet3_compact"), path)
        >>> simnets.load(path).spec.num_classes
        10
    """
    if not isinstance(model, ImageClassifier):
        raise SimNetsError(f"model is a {type(model).__name__}, expected a network of simnets")
    target = Path(path)
    metadata = {
        "simnets_format": FORMAT,
        "simnets_version": version("simnets"),
        "spec": model.spec.to_json(),
        "classes": json.dumps(model.classes, ensure_ascii=False),
    }
    # clones, because parameters that two layers share are stored once for each
    tensors = {name: tensor.detach().cpu().clone() for name, tensor in model.state_dict().items()}
    content = to_bytes(tensors, metadata)
    temporary = None
    try:
        with tempfile.NamedTemporaryFile(dir=target.parent, prefix=target.name, delete=False) as file:
            temporary = file.name
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())  # temporary files are private, a model need not be
        os.replace(temporary, target)
    except OSError as error:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        raise SimNetsError(f"cannot write {target}: {error.strerror or error}") from None


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


class _Unfilled(TorchFunctionMode):
    """Starting values are left out (on the meta device, drawing them would only import a compiler)."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in (Tensor.normal_, Tensor.uniform_) or getattr(func, "__module__", "") == "torch.nn.init":
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


def load(path: str | os.PathLike[str]) -> ImageClassifier:
    """The network that `save` wrote, in evaluation mode, on the CPU."""
    source = Path(path)
    tensors, metadata = _read(source)
    try:
        # nothing is allocated before the file is seen to hold it, and no random numbers are drawn
        with torch.device("meta"), _Unfilled():
            model = Spec.from_json(metadata["spec"]).build()
        model.classes = json.loads(metadata["classes"])
    except (KeyError, TypeError, json.JSONDecodeError, SimNetsError) as error:
        reason = f"its metadata lack {error}" if isinstance(error, KeyError) else str(error)
        raise SimNetsError(f"{source} cannot be used: {reason}") from None
    _fill(model, tensors, source)
    return model.eval()


def _read(source: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    if not source.is_file():
        raise SimNetsError(f"{source} is not a file; expected a .safetensors file that simnets.save wrote")
    try:
        with safe_open(source, framework="pt") as file:
            metadata = file.metadata() or {}
            found = metadata.get("simnets_format")
            if found is None:
                raise SimNetsError(f"{source} is a safetensors file, but not one that simnets wrote")
            if found != FORMAT:
                writer = metadata.get("simnets_version", "unknown")
                raise SimNetsError(
                    f"{source} has format {found} (simnets {writer}), this version of simnets reads format "
                    f"{FORMAT}; use the version that wrote it"
                )
            return {name: file.get_tensor(name) for name in file.keys()}, metadata  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        reason = " ".join(str(error).split())
        raise SimNetsError(f"{source} is damaged, or not a safetensors file ({reason})") from None


def _fill(model: ImageClassifier, tensors: dict[str, Tensor], source: Path) -> None:
    try:
        model.load_state_dict(tensors, assign=True)
    except (RuntimeError, SimNetsError) as error:
        # torch lists every difference on its own line, after a heading; the first says enough
        lines = [line.strip() for line in str(error).splitlines()]
        problem = lines[1] if len(lines) > 1 else lines[0]
        raise SimNetsError(f"{source} does not hold what its specification says: {problem}") from None
    floating = model.pixel_mean.dtype
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        expected = torch.int64 if name.endswith("num_batches_tracked") else floating
        if tensor.dtype != expected or not floating.is_floating_point:
            raise SimNetsError(f"{source}: {name} is {tensor.dtype}, expected {expected}")
