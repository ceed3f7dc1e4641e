import json
import os
from dataclasses import asdict

import pytest

from simnets.errors import SimNetsError
from simnets.training.folder import RunFolder
from simnets.training.recipe import Recipe

CONFIG = {"simnets": "1", "data": {"name": "a", "train": "x"}, "recipe": asdict(Recipe(lr=0.1))}


def test_same_configuration_opens_again(tmp_path):
    for name in ("a", "./a"):  # the same images by another path
        config = {**CONFIG, "simnets": name, "data": {"name": name, "train": "x"}}
        with RunFolder(tmp_path / "run").opened(config):
            pass


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"recipe": asdict(Recipe(lr=0.2))}, r"recipe\.lr 0\.1, asked for is 0\.2;"),
        ({"data": {"name": "a", "train": "y"}}, r"data\.train 'x', asked for is 'y';"),
        (
            {"recipe": asdict(Recipe(lr=0.1, betas=(0.5, 0.99))), "seed": 1},
            r"recipe\.betas .*\(and 1 more\);",
        ),
    ],
)
def test_another_configuration_is_refused_by_its_field(tmp_path, change, words):
    folder = RunFolder(tmp_path / "run")
    with folder.opened(CONFIG):
        pass
    before = (folder / "config.json").read_bytes()
    with pytest.raises(SimNetsError, match=words), folder.opened({**CONFIG, **change}):
        pass
    assert (folder / "config.json").read_bytes() == before


@pytest.mark.parametrize("energy", [0.0, 0.5])
def test_field_that_the_run_does_not_know_had_its_default(tmp_path, energy):
    """A run that was begun before the field was added goes on."""
    before = json.loads(json.dumps(CONFIG))
    del before["recipe"]["energy"]
    (tmp_path / "config.json").write_text(json.dumps(before))
    config = {**CONFIG, "recipe": asdict(Recipe(lr=0.1, energy=energy))}
    if energy:
        with (
            pytest.raises(SimNetsError, match=r"energy 0\.0, asked for is 0\.5"),
            RunFolder(tmp_path).opened(config),
        ):
            pass
    else:
        with RunFolder(tmp_path).opened(config):
            pass


def test_folder_with_other_files_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(SimNetsError, match=r"thesis\.tex"), RunFolder(tmp_path).opened(CONFIG):
        pass
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


def test_two_runs_cannot_use_it_at_once(tmp_path):
    first, second = RunFolder(tmp_path / "run"), RunFolder(tmp_path / "run")
    with first.opened(CONFIG), pytest.raises(SimNetsError, match="in use"), second.opened(CONFIG):
        pass
    with second.opened(CONFIG):
        pass


@pytest.mark.parametrize("text", ["{", "[]", "{}"])
def test_damaged_configuration_is_refused(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(SimNetsError, match=r"config\.json is damaged"), RunFolder(tmp_path).opened(CONFIG):
        pass


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="needs a system with such files")
def test_unwritable_place_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file" / "run", "/proc/run"):
        with pytest.raises(SimNetsError, match=r"^cannot write [^\n]*$"), RunFolder(place).opened(CONFIG):
            pass
