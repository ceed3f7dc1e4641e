"""What a network is, as a frozen dataclass that prints as a table and goes into the weights file as JSON.

Each family of networks has its own specification class beside its module; this file holds what they
share. Whatever is wrong with a specification is said when it is made, before any tensor is.
"""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NoReturn, Self, TypeVar

from rich.table import Table

from simnets.errors import SimNetsError

if TYPE_CHECKING:
    from simnets.models.base import ImageClassifier

Mode = Literal["learned", "frozen"]
OptionalMode = Literal["learned", "frozen", "none"]
T = TypeVar("T")

_LARGEST_SEARCHED = 1024
_MOST_CLASSES = 1_000_000  # a file from elsewhere shall not ask for more memory than it holds


class ImageTooSmall(Exception):
    """Raised inside `_stages` when a window does not fit; `Spec.stages` turns it into one clear line."""


@dataclasses.dataclass(frozen=True)
class Stage:
    """One row of a network's table: what it does, the shape that it gives, what is learned, what is fixed."""

    name: str
    operation: str
    output: tuple[int, ...]
    learned: str = ""
    fixed: str = ""

    @classmethod
    def of(cls, name: str, operation: str, output: tuple[int, ...], modes: Mapping[str, str]) -> Stage:
        """A stage from its parameter families and their modes, "learned", "frozen" or "none"."""
        learned, fixed = (
            ", ".join(family for family, mode in modes.items() if mode == wanted)
            for wanted in ("learned", "frozen")
        )
        return cls(name, operation, output, learned, fixed)


def convolved(size: tuple[int, int], field: int, stride: int = 1, padding: int = 0) -> tuple[int, int]:
    """The grid after a convolution with a square field."""
    grid = tuple((side + 2 * padding - field) // stride + 1 for side in size)
    if min(grid) < 1:
        raise ImageTooSmall
    return grid[0], grid[1]


def pooled(size: tuple[int, int], window: int, stride: int, ceil: bool = False) -> tuple[int, int]:
    """The grid after unpadded pooling; with `ceil`, a last window that is only partly inside counts too."""

    def windows(side: int) -> int:
        count = (side - window) // stride + 1
        inside = count * stride < side  # where the next one would begin
        return count + (ceil and inside and (side - window) % stride > 0)

    grid = windows(size[0]), windows(size[1])
    if min(grid) < 1:
        raise ImageTooSmall
    return grid


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spec:
    """Base of all specifications.

    Example:
        >>> from simnets.models import CaffeQuickSpec, Spec
        >>> spec = CaffeQuickSpec(num_classes=100)
        >>> Spec.from_json(spec.to_json()) == spec
        True
    """

    family: ClassVar[str]
    _families: ClassVar[dict[str, type[Spec]]] = {}

    input_shape: tuple[int, ...] = (3, 32, 32)
    num_classes: int = 10

    def __init_subclass__(cls) -> None:
        Spec._families[cls.family] = cls

    def __post_init__(self) -> None:
        if not self.input_shape or any(not isinstance(n, int) or n < 1 for n in self.input_shape):
            raise SimNetsError(
                f"input_shape is {self.input_shape}, expected positive sizes such as (3, 32, 32)"
            )
        if not 2 <= self.num_classes <= _MOST_CLASSES:
            raise SimNetsError(f"num_classes is {self.num_classes}, expected 2 to {_MOST_CLASSES}")
        self.stages()

    def build(self) -> ImageClassifier:
        """A new network of this specification, with its starting values."""
        raise NotImplementedError

    def _stages(self, input_shape: tuple[int, ...]) -> list[Stage]:
        raise NotImplementedError

    def stages(self) -> list[Stage]:
        """The network's stages in order, with the shape after each."""
        if len(self.input_shape) != 3:
            raise SimNetsError(f"input_shape is {self.input_shape}, expected (channels, height, width)")
        try:
            return self._stages(self.input_shape)
        except ImageTooSmall:
            smallest = self._smallest_side()
            height, width = self.input_shape[1:]
            raise SimNetsError(
                f"input_shape: images of {height}×{width} are too small for this network ({self.family}), "
                f"the smallest possible size is {smallest}×{smallest}; use larger images or another network"
            ) from None

    def _smallest_side(self) -> int:
        for side in range(1, _LARGEST_SEARCHED):
            try:
                self._stages((self.input_shape[0], side, side))
            except ImageTooSmall:
                continue
            return side
        raise SimNetsError(f"no image up to {_LARGEST_SEARCHED}×{_LARGEST_SEARCHED} fits this network")

    def replace(self, **changes: Any) -> Self:
        """This specification with some fields changed; wrong names and types are refused."""
        return _replace(self, changes, type(self).__name__)

    def table(self, title: str | None = None) -> Table:
        """The network as a rich table, a row a stage."""
        table = Table(title=title or self.family, title_justify="left")
        for column in ("stage", "operation", "output", "learned", "fixed"):
            table.add_column(column)
        for stage in self.stages():
            shape = "×".join(str(n) for n in stage.output)
            table.add_row(stage.name, stage.operation, shape, stage.learned, stage.fixed)
        return table

    def __rich__(self) -> Table:
        return self.table()

    def to_json(self) -> str:
        """One JSON object: the family, then every field."""
        return json.dumps({"family": self.family, **_plain(self)}, ensure_ascii=False, allow_nan=False)

    @staticmethod
    def from_json(text: str) -> Spec:
        """The specification that `to_json` wrote; anything else is refused with one line."""
        try:
            data = json.loads(text)
        except json.JSONDecodeError as error:
            raise SimNetsError(f"the network's specification is not JSON: {error}") from None
        if not isinstance(data, dict) or data.get("family") not in Spec._families:
            family = data.get("family") if isinstance(data, dict) else data
            known = ", ".join(sorted(Spec._families))
            raise SimNetsError(f"family of the network is {family!r}, expected one of {known}")
        cls = Spec._families[data.pop("family")]
        return _from_plain(cls, data, cls.__name__)


# Metadata of a field that files written before do not have: it is stored only where it is not the default,
# which is what was done before there was one.
ADDED = {"added": True}


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {
            f.name: _plain(getattr(value, f.name))
            for f in dataclasses.fields(value)
            if not (f.metadata == ADDED and getattr(value, f.name) == f.default)
        }
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and math.isinf(value):
        return str(value)  # JSON has no infinity, and β = ∞ is the maximum
    return value


def _from_plain(cls: type[T], data: Any, where: str) -> T:
    if not isinstance(data, dict):
        raise SimNetsError(f"{where} is {data!r}, expected an object with its fields")
    fields = dataclasses.fields(cls)  # type: ignore[arg-type]
    names = [f.name for f in fields]
    if unknown := sorted(data.keys() - set(names)):
        raise SimNetsError(f"{where} has unknown fields {', '.join(unknown)}; it has {', '.join(names)}")
    if missing := [f.name for f in fields if f.name not in data and f.metadata != ADDED]:
        raise SimNetsError(f"{where} lacks the fields {', '.join(missing)}")
    hints = typing.get_type_hints(cls)
    return cls(**{name: converted(value, hints[name], f"{where}.{name}") for name, value in data.items()})


def _replace(spec: T, changes: dict[str, Any], where: str) -> T:
    names = [f.name for f in dataclasses.fields(spec)]  # type: ignore[arg-type]
    if unknown := sorted(changes.keys() - set(names)):
        raise SimNetsError(f"unknown option {', '.join(unknown)} of {where}; it has {', '.join(names)}")
    hints = typing.get_type_hints(type(spec))
    good = {name: converted(value, hints[name], name) for name, value in changes.items()}
    return dataclasses.replace(spec, **good)  # type: ignore[type-var]


def converted(value: Any, hint: Any, where: str) -> Any:
    """`value` as the type that a field is declared with, from plain JSON or from a caller's argument."""

    def refuse(expected: str) -> NoReturn:
        raise SimNetsError(f"{where} is {value!r}, expected {expected}")

    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        if value not in arguments:
            refuse("one of " + ", ".join(repr(a) for a in arguments))
        return value
    if origin in (types.UnionType, typing.Union):  # only `X | None` is used
        if value is None:
            return None
        return converted(value, next(a for a in arguments if a is not type(None)), where)
    if origin is tuple:
        if not isinstance(value, list | tuple):
            refuse("a sequence")
        return tuple(converted(item, arguments[0], f"{where}[{i}]") for i, item in enumerate(value))
    if dataclasses.is_dataclass(hint):
        return value if isinstance(value, typing.cast(type, hint)) else _from_plain(hint, value, where)  # type: ignore[arg-type]
    if hint is float:
        if value in ("inf", "-inf"):
            return float(value)
        if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
            refuse("a number")
        return float(value)
    if hint is int:
        if isinstance(value, bool) or not isinstance(value, int):
            refuse("a whole number")
        return value
    if not isinstance(value, hint):
        refuse(f"a {hint.__name__}")
    return value
