"""`check`: what is wrong with a data set, file by file."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from simnets.data.folder import list_folder
from simnets.data.images import read_image
from simnets.data.load import load_dataset, locate
from simnets.data.official import OFFICIAL, OfficialFile, OfficialSet, sha256_of
from simnets.errors import SimNetsError


@dataclass(frozen=True)
class Finding:
    """One line of a report; an error means that the data cannot be used as what it claims to be."""

    level: str  # "ok", "warning" or "error"
    message: str

    def __str__(self) -> str:
        return f"{self.level:<7} {self.message}"


@dataclass(frozen=True)
class CheckReport:
    """All findings about one data set; `ok` when none of them is an error."""

    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        return all(finding.level != "error" for finding in self.findings)

    @property
    def lines(self) -> list[str]:
        return [str(finding) for finding in self.findings]


def check(name_or_path: str | Path, root: str | Path | None = None) -> CheckReport:
    """Read everything of a data set (named as for `load_dataset`) and say what is there and what is wrong.

    A file of an official layout must have the official number of images and labels in range; one that
    has, but is not the official file byte for byte, gets a warning.

    >>> print(*check("cifar10").lines, sep="\\n")  # doctest: +SKIP
    """
    kind, path = locate(name_or_path, root)
    if kind in OFFICIAL:
        return CheckReport(tuple(_check_official(OFFICIAL[kind], path)))
    if kind == "folder":
        return CheckReport(tuple(_check_folder(path)))
    findings = []
    for split in ("train", "test"):
        try:
            findings.append(Finding("ok", f"{split}: {load_dataset(name_or_path, split)!r}"))
        except SimNetsError as error:
            findings.append(Finding("error", str(error)))
    return CheckReport(tuple(findings))


def _check_official(official: OfficialSet, folder: Path) -> list[Finding]:
    findings = [_check_file(official, folder / file.name, file) for file in official.files]
    try:
        classes = official.read_classes(folder)
        findings.append(Finding("ok", f"{folder}: {len(classes)} classes"))
    except SimNetsError as error:
        findings.append(Finding("error", str(error)))
    return findings


def _check_file(official: OfficialSet, path: Path, file: OfficialFile) -> Finding:
    try:
        images, _ = official.read_file(path)
    except SimNetsError as error:
        return Finding("error", str(error))
    if len(images) != file.images:
        return Finding("error", f"{path}: holds {len(images):,} images, the official file {file.images:,}")
    if sha256_of(path) != file.sha256:
        return Finding(
            "warning",
            f"{path}: {len(images):,} images, well formed, but not the official file (altered or remade)",
        )
    return Finding("ok", f"{path}: {len(images):,} images, the official file")


def _check_folder(folder: Path) -> list[Finding]:
    findings = []
    for split in ("train", "test"):
        try:
            listing, classes = list_folder(folder, split)
        except (SimNetsError, OSError) as error:
            return [Finding("error", str(error))]
        for path, _ in listing:
            try:
                read_image(path)
            except SimNetsError as error:
                findings.append(Finding("error", str(error)))
        counts = Counter(label for _, label in listing)
        findings.append(
            Finding("ok", f"{split}: {len(listing):,} pictures of {len(counts)} of {len(classes)} classes")
        )
        absent = [name for label, name in enumerate(classes) if not counts[label]]
        if absent:
            findings.append(Finding("warning", f"{split}: no picture of {', '.join(absent)}"))
    return findings
