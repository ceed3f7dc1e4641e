"""One way to hold every parameter of every layer: learned, frozen, shared or absent.

A layer declares its parameter families once, by name, mode and domain:

- "learned": an `nn.Parameter`;
- "frozen": the same, with `requires_grad=False`; a frozen *number* (p, β) is a Python float instead,
  so that the operators can choose their path without reading a tensor, saved in the state dict;
- another layer: the very same parameter (or number) as that layer's;
- "none", where a family may be left out.

Families whose domain is bounded are raw/constrained pairs: `raw_weights` is what is learned and saved,
`weights = exp(raw_weights)` is what the layer uses. Assigning to a family (`layer.weights = value`) takes
constrained values, checks them, and writes them in place, so optimisers and sharing stay intact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from simnets.errors import SimNetsError

Mode = str | nn.Module

# exp(−1000) is exactly 0 in every float type. A finite stand-in for log 0, unlike −∞, survives weight decay
# and weight averaging; its gradient, g·exp(raw), is 0, so a weight that is 0 stays 0.
LOG_ZERO = -1000.0


@dataclass(frozen=True)
class Domain:
    """The values that a family may take, and how they are stored (`to_raw` None: as they are)."""

    expected: str
    contains: Callable[[Tensor], Tensor]
    to_raw: Callable[[Tensor], Tensor] | None = None
    from_raw: Callable[[Tensor], Tensor] = torch.exp


def _is_number(value: Tensor) -> Tensor:
    return ~value.isnan()


def _is_below_infinity(value: Tensor) -> Tensor:
    return value < torch.inf


def _is_non_negative(value: Tensor) -> Tensor:
    return (value >= 0) & value.isfinite()


def _is_positive(value: Tensor) -> Tensor:
    return (value > 0) & value.isfinite()


def _log(value: Tensor) -> Tensor:
    return value.log().clamp(min=LOG_ZERO)


REAL = Domain("finite", torch.isfinite)
EXTENDED = Domain("a number, ±inf allowed, not NaN", _is_number)
LOG_WEIGHT = Domain("finite or -inf", _is_below_infinity)
NON_NEGATIVE = Domain("finite and >= 0", _is_non_negative, _log)
POSITIVE = Domain("finite and > 0", _is_positive, _log)


class Number:
    """A frozen scalar; layers that share it hold the same object.

    It is kept as text, which torch.compile takes for a constant and guards. A float may become symbolic
    there, and then cannot decide which path an operator takes.
    """

    def __init__(self, value: float) -> None:
        self.value = value

    @property
    def value(self) -> float:
        return float(self._text)

    @value.setter
    def value(self, value: float) -> None:
        self._text = repr(float(value))


class Layer(nn.Module):
    """Base of the layers that have parameters: declaration, assignment, sharing and saving of families."""

    def __init__(self) -> None:
        super().__init__()
        self._domains: dict[str, Domain] = {}
        self._modes: dict[str, str] = {}
        self._numbers: dict[str, Number] = {}

    # ── declaration ──────────────────────────────────────────────────────────────────────────────────

    def _declare(
        self,
        name: str,
        mode: Mode,
        shape: Iterable[int],
        domain: Domain,
        *,
        optional: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """A family of tensors; the values are left for `reset_parameters`."""
        shape = tuple(shape)
        raw_name = name if domain.to_raw is None else f"raw_{name}"
        self._domains[name] = domain
        parameter: nn.Parameter | None
        if isinstance(mode, nn.Module):
            source = self._source(name, mode)
            parameter = source._parameters[raw_name]
            if parameter is None or parameter.shape != shape:
                found = "none" if parameter is None else f"shape {tuple(parameter.shape)}"
                raise SimNetsError(
                    f"{name}_mode: the layer to share with has {name} {found}, expected shape {shape}"
                )
        elif self._check_mode(name, mode, optional) == "none":
            parameter = None
        else:
            parameter = nn.Parameter(
                torch.empty(shape, device=device, dtype=dtype), requires_grad=mode == "learned"
            )
        self.register_parameter(raw_name, parameter)

    def _declare_number(
        self,
        name: str,
        mode: Mode,
        value: float,
        domain: Domain,
        *,
        frozen_domain: Domain | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """A scalar family with its first value; a frozen one may have the wider `frozen_domain`."""
        raw_name = f"raw_{name}"
        self._domains[name] = domain if mode == "learned" else frozen_domain or domain
        if isinstance(mode, nn.Module):
            source = self._source(name, mode)
            self._domains[name] = source._domains[name]
            if name in source._numbers:
                self._numbers[name] = source._numbers[name]
            else:
                self.register_parameter(raw_name, source._parameters[raw_name])
            return
        if self._check_mode(name, mode, optional=False) == "learned":
            self.register_parameter(raw_name, nn.Parameter(torch.empty((), device=device, dtype=dtype)))
        else:
            self._numbers[name] = Number(0.0)
        self._assign(name, value)

    def _check_mode(self, name: str, mode: Mode, optional: bool) -> Mode:
        if mode not in ("learned", "frozen", *(("none",) if optional else ())):
            choices = "'learned', 'frozen', 'none'" if optional else "'learned', 'frozen'"
            raise SimNetsError(f"{name}_mode={mode!r}: expected {choices} or a layer to share with")
        self._modes[name] = str(mode)
        return mode

    def _source(self, name: str, layer: nn.Module) -> Layer:
        if not _has(layer, name):
            layer = getattr(layer, "similarity", layer)  # the image layers hold z, u, p and bias in there
        if not (isinstance(layer, Layer) and _has(layer, name)):
            raise SimNetsError(
                f"{name}_mode: {type(layer).__name__} has no {name} to share; give a {type(self).__name__}"
            )
        self._modes[name] = "shared"
        return layer

    def _owns(self, name: str) -> bool:
        """Whether `reset_parameters` of this layer may set the family."""
        return self._modes[name] in ("learned", "frozen")

    # ── reading ──────────────────────────────────────────────────────────────────────────────────────

    def _value(self, name: str) -> Tensor | None:
        """The constrained value of a family of tensors."""
        domain = self._domains[name]
        if domain.to_raw is None:
            return self._parameters[name]
        raw = self._parameters[f"raw_{name}"]
        return None if raw is None else domain.from_raw(raw)

    def _number(self, name: str) -> float | Tensor:
        """The constrained value of a scalar family as the operators take it: a float unless it is learned."""
        if name in self._numbers:
            return self._numbers[name].value
        raw = self._parameters[f"raw_{name}"]
        assert raw is not None
        domain = self._domains[name]
        return raw if domain.to_raw is None else domain.from_raw(raw)

    def _number_tensor(self, name: str) -> Tensor:
        """The same as a 0-dim tensor, for people."""
        value = self._number(name)
        return value if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64)

    # ── assignment ───────────────────────────────────────────────────────────────────────────────────

    def _assign(self, name: str, value: Any) -> None:
        """Check constrained values and write them in place."""
        domain = self._domains[name]
        if name in self._numbers:
            self._numbers[name].value = float(self._checked(name, value, torch.Size(())))
            return
        raw = self._parameters[name if name in self._parameters else f"raw_{name}"]
        if raw is None:
            raise SimNetsError(f"{name}: this layer has none ({name}_mode='none'), so it cannot be assigned")
        checked = self._checked(name, value, raw.shape)
        with torch.no_grad():
            raw.copy_(checked if domain.to_raw is None else domain.to_raw(checked))

    def _checked(self, name: str, value: Any, shape: torch.Size) -> Tensor:
        # float64, so that logarithms are rounded once, and on the CPU, which always has it
        tensor = (
            value if isinstance(value, Tensor) else torch.as_tensor(value, dtype=torch.float64, device="cpu")
        )
        given = tensor.detach().to("cpu", torch.float64)
        if given.numel() == 1 and not shape:
            given = given.reshape(())
        if given.shape != shape:
            raise SimNetsError(f"{name}: expected shape {tuple(shape)}, got {tuple(given.shape)}")
        wrong = given[~self._domains[name].contains(given)]
        if wrong.numel():
            raise SimNetsError(
                f"{name}: expected values {self._domains[name].expected}, got {wrong[0].item():g}"
            )
        return given

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self.__dict__.get("_domains", ()):
            super().__setattr__(name, value)
        elif name not in self._parameters:
            object.__setattr__(
                self, name, value
            )  # a property; nn.Module would try to register an nn.Parameter
        elif isinstance(value, nn.Parameter) and (parameter := self._parameters[name]) is not None:
            self._checked(name, value, parameter.shape)
            super().__setattr__(
                name, value
            )  # as everywhere in torch: an nn.Parameter takes the old one's place
        else:
            self._assign(name, value)

    # ── saving ───────────────────────────────────────────────────────────────────────────────────────

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for name in self._numbers:
            destination[prefix + name] = self._number_tensor(name)

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Any],
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )
        for name in self._numbers:
            key = prefix + name
            if key in state_dict:
                self._assign(name, state_dict[key])
                if key in unexpected_keys:
                    unexpected_keys.remove(key)
            elif strict:
                missing_keys.append(key)

    # ── showing ──────────────────────────────────────────────────────────────────────────────────────

    def _describe(self, *names: str) -> str:
        """`p=2 (frozen), weights learned, …` for `extra_repr`."""
        words = []
        for name in names:
            mode = self._modes[name]
            if name in self._numbers:
                words.append(f"{name}={self._numbers[name].value:g} ({mode})")
            elif mode != "none":
                words.append(f"{name} {mode}")
        return ", ".join(words)


def _has(layer: nn.Module, name: str) -> bool:
    return isinstance(layer, Layer) and name in layer._domains
