"""Learning from teachers: their opinion of every image, as it is and mirrored, beside its label."""

import dataclasses
import json

import pytest
import tiny
import torch
from test_train import Stop

from simnets.data import ImageDataset
from simnets.errors import SimNetsError
from simnets.models import save
from simnets.training import TrainingInterrupted, fit, report, train
from simnets.training.distillation import soft_labels


@pytest.fixture
def no_pictures(monkeypatch):
    monkeypatch.setattr(report, "files", lambda *args: {})


@pytest.fixture
def taught(tmp_path):
    """A recipe with two teachers in files."""
    names = []
    for seed in (7, 8):
        file = tmp_path / f"{seed}.safetensors"
        save(tiny.network(seed), file)
        names.append(str(file))
    return dataclasses.replace(tiny.RECIPE, teachers=tuple(names))


@pytest.mark.parametrize("flip", [True, False])
def test_target_is_a_mixture_of_opinions_and_label(flip):
    recipe = dataclasses.replace(tiny.RECIPE, flip=flip, teacher_share=0.6)
    teachers, data = [tiny.network(1).eval(), tiny.network(2).eval()], tiny.data(6)
    said = []
    found = soft_labels(teachers, data, recipe, said.append)
    assert said[0] == "asking teacher 1 of 2 about 6 images"
    assert said[1].startswith("asking teacher 2 of 2 about 6 images, about ")
    for i in range(len(data)):
        views = [data.images[i : i + 1]] + ([data.images[i : i + 1].flip(3)] if flip else [])
        with torch.no_grad():
            opinion = sum(torch.softmax(t(v)[0], 0) for t in teachers for v in views) / 2 / len(views)
        expected = 0.6 * opinion
        expected[data.labels[i]] += 0.4
        torch.testing.assert_close(found[i], expected)


def test_teachers_of_no_weight_change_nothing_but_rounding():
    recipe = dataclasses.replace(tiny.RECIPE, teacher_share=0.0, epochs=1)
    plain, taught = tiny.network(), tiny.network()
    one = fit(plain, tiny.data(), recipe=recipe)
    two = fit(taught, tiny.data(), recipe=recipe, teachers=[tiny.network(3)])
    assert two.history[0]["loss"] == pytest.approx(one.history[0]["loss"], rel=1e-5)
    for a, b in zip(plain.parameters(), taught.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


def test_teachers_are_believed_when_labels_have_no_weight():
    """Labels are all one class; only the teacher knows that there are two."""
    data = tiny.data()
    teacher = tiny.network(noise=0.0)
    fit(teacher, data, recipe=tiny.RECIPE)
    blind = ImageDataset(data.images, torch.zeros_like(data.labels), data.classes, data.name)
    recipe = dataclasses.replace(tiny.RECIPE, teacher_share=1.0, label_start=False, epochs=30)
    student = tiny.network(noise=0.0)
    fit(student, blind, recipe=recipe, teachers=[teacher])
    with torch.no_grad():
        assert (student(data.images).argmax(1) == data.labels).float().mean() > 0.9


def test_run_stops_and_goes_on_with_the_same_result(tmp_path, no_pictures, taught):
    def start(folder, display=None):
        test = tiny.data(20, seed=1)
        return train(tiny.network(), tiny.data(), tmp_path / folder, taught, test=test, display=display)

    start("whole")
    with pytest.raises(TrainingInterrupted):
        start("parts", Stop(6))
    start("parts")
    a, b = (tiny.digest(tmp_path / folder / "model.safetensors") for folder in ("whole", "parts"))
    assert a == b
    assert len(json.loads((tmp_path / "whole" / "config.json").read_text())["teachers"]) == 2
    # other weights under the same name are another teacher
    save(tiny.network(9), taught.teachers[0])
    with pytest.raises(SimNetsError, match="holds a run with teachers"):
        start("whole")


def test_unknown_or_unsuitable_teachers_are_refused(tmp_path, taught):
    def start(recipe, data):
        train(tiny.network(), data, tmp_path / "run", recipe, test=data)

    with pytest.raises(SimNetsError, match="one of teachers is 'plato', neither a file nor a name from"):
        start(dataclasses.replace(taught, teachers=("plato",)), tiny.data())
    with pytest.raises(SimNetsError, match=r"teacher simnet2-cifar10: .* and the network 10"):
        start(dataclasses.replace(taught, teachers=("simnet2-cifar10",)), tiny.data())
    with pytest.raises(SimNetsError, match=r"teacher_share is 1\.5"):
        dataclasses.replace(taught, teacher_share=1.5)
    assert not (tmp_path / "run").exists()
