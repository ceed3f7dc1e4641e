"""What is known about finished trials: results/<experiment>.json, a record a trial."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from simnets.errors import SimNetsError
from simnets.training.files import write_whole

Record = dict[str, Any]


def read_results(folder: Path, experiment: str) -> list[Record]:
    """The records of an experiment, in the order in which they came."""
    file = folder / f"{experiment}.json"
    if not file.is_file():
        return []
    try:
        records: list[Record] = json.loads(file.read_text())["trials"]
    except (ValueError, KeyError, TypeError):
        raise SimNetsError(
            f"{file} is damaged; expected results of `simnets reproduce {experiment}`"
        ) from None
    return records


def add_result(folder: Path, experiment: str, record: Record) -> None:
    """Append a record; one of the same name is replaced."""
    folder.mkdir(parents=True, exist_ok=True)
    records = [old for old in read_results(folder, experiment) if old["name"] != record["name"]]
    text = json.dumps({"experiment": experiment, "trials": [*records, record]}, indent=1, ensure_ascii=False)
    write_whole(folder / f"{experiment}.json", text + "\n")
