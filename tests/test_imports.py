"""Imports point one way: ops ◀ nn ◀ models ◀ pretrain ◀ training ◀ {experiments, deploy, cli}."""

import ast
from pathlib import Path

import pytest

import simnets

SOURCE = Path(simnets.__file__).parent

# What each room may import from, besides itself. `data` knows no other room.
ALLOWED = {
    "errors": set(),
    "ops": {"errors"},
    "nn": {"errors", "ops"},
    "models": {"errors", "ops", "nn"},
    "flops": {"errors", "ops", "nn", "models"},
    "data": {"errors"},
    "pretrain": {"errors", "ops", "nn", "models", "data"},
    "training": {"errors", "ops", "nn", "models", "flops", "data", "pretrain"},
    "table_network": {"ops", "pretrain"},
    "kernel_machine": {"errors", "ops"},
    "estimator": {"errors", "table_network", "kernel_machine"},
}
BELOW_TOP = {*ALLOWED, "__version__"}
ALLOWED |= {room: set(BELOW_TOP) for room in ("experiments", "deploy")}
ALLOWED["experiments"].add("deploy")
ALLOWED["cli"] = {*BELOW_TOP, "experiments", "deploy"}
ALLOWED["__main__"] = {"cli"}


def room_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def rooms_imported(path: Path) -> set[str]:
    """The rooms that a file imports, wherever in the file the import stands."""
    rooms = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}:{node.lineno}: imports are absolute"
            names = (
                [f"simnets.{alias.name}" for alias in node.names]
                if node.module == "simnets"
                else [node.module or ""]
            )
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        rooms |= {name.split(".")[1] for name in names if name.startswith("simnets.")}
    return rooms


FILES = sorted(path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py")


@pytest.mark.parametrize("path", FILES, ids=[str(path.relative_to(SOURCE)) for path in FILES])
def test_imports_point_one_way(path: Path) -> None:
    room = room_of(path)
    assert room in ALLOWED, f"{room}: a room that the architecture does not know"
    wrong = rooms_imported(path) - ALLOWED[room] - {room}
    assert not wrong, f"{path.relative_to(SOURCE)} imports {sorted(wrong)}, which stand above {room}"


def test_public_names() -> None:
    assert all(hasattr(simnets, name) for name in simnets.__all__)
    assert sorted(simnets.__all__) == list(simnets.__all__)
