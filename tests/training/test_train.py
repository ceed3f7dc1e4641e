"""`train` and `fit` from end to end on a tiny problem."""

import dataclasses
import io
import json
import signal
import sys
from html.parser import HTMLParser

import pytest
import tiny
import torch
from PIL import Image
from rich.console import Console

from simnets.errors import SimNetsError
from simnets.models import create_model, load
from simnets.training import (
    Checkpoints,
    Recipe,
    TrainingDiverged,
    TrainingInterrupted,
    World,
    evaluate,
    fit,
    loop,
    preparation,
    report,
    train,
)
from simnets.training.display import Display, Lines, Picture
from simnets.training.evaluate import summarise


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "one"
    return train(tiny.network(), tiny.data(), folder, tiny.RECIPE, test=tiny.data(20, seed=1))


@pytest.fixture
def no_pictures(monkeypatch):
    monkeypatch.setattr(report, "files", lambda *args: {})


def test_run_folder_holds_what_it_should(finished):
    names = sorted(path.name for path in finished.folder.iterdir())
    pictures = ["confusion_matrix.png", "learning_curves.png"]
    others = ["config.json", "metrics.jsonl", "model.safetensors", "report.html", "result.json"]
    assert names == sorted(pictures + others)
    for name in pictures:
        image = Image.open(finished.folder / name)
        assert image.format == "PNG"
        assert min(image.size) > 200


def test_it_learned_and_the_file_alone_knows_everything(finished):
    assert finished.evaluation.accuracy == 1.0
    model = load(finished.folder / "model.safetensors")
    assert model.classes == tiny.CLASSES
    assert model.scale is None  # folded into the paper's parameters
    again = evaluate(model, tiny.data(20, seed=1))
    assert again == finished.evaluation
    assert json.loads((finished.folder / "result.json").read_text())["test"] == again.as_dict()


def test_metrics_have_a_line_an_epoch(finished):
    lines = [json.loads(line) for line in (finished.folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == [1, 2, 3, 4]
    assert [line["step"] for line in lines] == [4, 8, 12, 16]
    assert lines == finished.history
    assert lines[-1]["loss"] < lines[0]["loss"]
    assert 0 <= lines[-1]["validation_accuracy"] <= 1


@pytest.mark.parametrize("change", [{"flip": True}, {"shift": 1}, {"cutout": 2}, {"warp": 0.1}])
def test_every_change_of_the_images_reaches_the_network(change):
    as_they_are = dataclasses.replace(tiny.RECIPE, epochs=1, flip=False, shift=0, cutout=0, warp=0.0)
    changed = dataclasses.replace(as_they_are, **change)
    losses = [
        fit(tiny.network(), tiny.data(), recipe=recipe).history[0]["loss"]
        for recipe in (as_they_are, changed)
    ]
    assert losses[0] != losses[1]


class Links(HTMLParser):
    def __init__(self):
        super().__init__()
        self.sources, self.open, self.text = [], [], ""

    def handle_starttag(self, tag, attributes):
        self.sources += [v for k, v in attributes if k in ("src", "href")]
        if tag not in ("img", "meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def test_report_is_one_self_contained_page(finished):
    page = Links()
    page.feed((finished.folder / "report.html").read_text())
    assert page.open == []
    assert len(page.sources) >= 6  # curves, confusions, filters, templates, weights, offsets
    assert all(source.startswith("data:image/png;base64,") for source in page.sources)
    assert "http" not in (finished.folder / "report.html").read_text()
    for word in (
        "test accuracy",
        "100.00%",
        "Learning curves",
        "Most confident mistakes",
        "label_smoothing",
        "log-likelihood",
    ):
        assert word in page.text


def test_report_escapes_names(finished):
    data = dataclasses.replace(tiny.data(20, seed=1), classes=("<b>", "a&b"))
    scores = torch.eye(2)[1 - data.labels]
    evaluation = summarise(scores, data.labels, data.classes)
    config = json.loads((finished.folder / "config.json").read_text())
    outcome = loop.Outcome(finished.history, ["1 < 2"], 1.0)
    page = report.files(finished.model, config, outcome, evaluation, scores, data, "here")["report.html"]
    assert "<b></b>" not in page
    assert "&lt;b&gt;" in page
    assert "a&amp;b" in page
    assert "1 &lt; 2" in page


def test_finished_run_is_found_finished(finished, monkeypatch):
    monkeypatch.setattr("simnets.training.run.fit", lambda *args, **kwargs: pytest.fail("trained again"))
    before = {path: path.stat().st_mtime_ns for path in finished.folder.iterdir()}
    again = train(tiny.network(), tiny.data(), finished.folder, tiny.RECIPE, test=tiny.data(20, seed=1))
    assert again.was_finished
    assert again.evaluation == finished.evaluation
    assert again.history == finished.history
    assert {path: path.stat().st_mtime_ns for path in finished.folder.iterdir()} == before


def test_another_seed_or_network_is_refused_and_another_seed_gives_other_weights(
    finished, tmp_path, no_pictures
):
    with pytest.raises(SimNetsError, match="seed 0, asked for is 1"):
        train(tiny.network(), tiny.data(), finished.folder, tiny.RECIPE, 1, test=tiny.data(20, seed=1))
    with pytest.raises(SimNetsError, match=r"model\.origin"):
        train(tiny.network(seed=5), tiny.data(), finished.folder, tiny.RECIPE, test=tiny.data(20, seed=1))
    other = train(tiny.network(), tiny.data(), tmp_path / "b", tiny.RECIPE, 1, test=tiny.data(20, seed=1))
    assert other.history[0]["loss"] != finished.history[0]["loss"]


def test_training_on_everything_when_nothing_is_held_out(tmp_path, no_pictures):
    recipe = dataclasses.replace(tiny.RECIPE, validation=0, epochs=1)
    run = train(tiny.network(), tiny.data(), tmp_path / "a", recipe, test=tiny.data(20, seed=1))
    assert run.history[0]["step"] == 80 // 16
    assert "validation_accuracy" not in run.history[0]


def test_starting_from_a_weights_file(finished, tmp_path, no_pictures):
    recipe = dataclasses.replace(tiny.RECIPE, epochs=1, lr=1e-12, ema=0.0, pretrain=False, label_start=False)
    recipe = dataclasses.replace(recipe, precondition=False, project=False)
    file = finished.folder / "model.safetensors"
    run = train(file, tiny.data(), tmp_path / "a", recipe, test=tiny.data(20, seed=1))
    assert run.evaluation.accuracy == 1.0
    four = dataclasses.replace(tiny.data(), classes=("a", "b", "c", "d"))
    with pytest.raises(SimNetsError, match="4 classes"):
        train(file, four, tmp_path / "b", recipe, test=four)
    assert not (tmp_path / "b").exists()


class Stop(Display):
    """Asks for a stop, as Ctrl-C would, at a step in the middle of an epoch."""

    def __init__(self, step, signum=signal.SIGINT):
        self.at, self.signum, self.said = step, signum, []

    def step(self, moment):
        if moment.step == self.at:
            signal.raise_signal(self.signum)

    def say(self, text):
        self.said.append(text)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_stopped_run_finishes_its_step_saves_and_goes_on(tmp_path, no_pictures, finished, signum):
    def start(display):
        data, test = tiny.data(), tiny.data(20, seed=1)
        return train(tiny.network(), data, tmp_path / "a", tiny.RECIPE, test=test, display=display)

    handler = signal.getsignal(signum)
    with pytest.raises(TrainingInterrupted) as stopped:
        start(Stop(6, signum))
    assert (stopped.value.step, stopped.value.signum) == (6, signum)
    assert isinstance(stopped.value, KeyboardInterrupt)
    assert signal.getsignal(signum) is handler
    assert Checkpoints(tmp_path / "a" / "checkpoints").read(pytest.fail).state["step"] == 6
    display = Stop(-1)
    start(display)
    assert "going on after step 6 of 16" in display.said
    a, b = (tiny.digest(folder / "model.safetensors") for folder in (tmp_path / "a", finished.folder))
    assert a == b


@pytest.mark.parametrize("look_every", [1, 3])
def test_loss_that_is_not_a_number_stops_and_keeps_the_last_good_checkpoint(
    tmp_path, no_pictures, monkeypatch, look_every
):
    """With look_every 3, as on a GPU, the run goes back and looks at every step."""
    network = tiny.network(noise=0.0)
    spoil = network.layers[0].conv_similarity
    original = loop._Loop.__init__

    def init(self, *args, **kwargs):
        original(self, *args, **kwargs)
        self.look_every = look_every

    monkeypatch.setattr(loop._Loop, "__init__", init)

    def poison(module, inputs, output):
        return output * torch.nan if state["step"] >= 9 else output

    state = {"step": 0}
    advance = loop._Loop._advance

    def counted(self, look):
        state["step"] = self.step
        return advance(self, look)

    monkeypatch.setattr(loop._Loop, "_advance", counted)
    spoil.register_forward_hook(poison)
    with pytest.raises(TrainingDiverged) as stopped:
        train(network, tiny.data(), tmp_path / "a", tiny.RECIPE, test=tiny.data(20, seed=1))
    message = str(stopped.value)
    assert "step 10 (epoch 3)" in message
    assert "layers.0.conv_similarity (ConvSimilarity2d)" in message
    assert "\n" not in message
    kept = Checkpoints(tmp_path / "a" / "checkpoints").read(pytest.fail)
    assert kept.state["step"] == 8
    assert all(v.isfinite().all() for k, v in kept.tensors.items() if "raw" in k or "templates" in k)
    assert not (tmp_path / "a" / "model.safetensors").exists()


def test_infinite_gradient_is_named(monkeypatch):
    network = tiny.network()
    network.classify.offsets.register_hook(lambda gradient: gradient * torch.inf)
    with pytest.raises(TrainingDiverged, match=r"gradient of classify\.offsets"):
        fit(network, tiny.data(), recipe=tiny.RECIPE)


def test_weights_that_leave_the_numbers_never_become_a_checkpoint(tmp_path, no_pictures, monkeypatch):
    def overflow(model, recipe):
        with torch.no_grad():
            model.classify.offsets.fill_(torch.nan)

    monkeypatch.setattr(preparation, "after_step", overflow)
    with pytest.raises(TrainingDiverged, match=r"parameter classify\.offsets"):
        train(
            *(tiny.network(), tiny.data(), tmp_path / "a", tiny.RECIPE),
            test=tiny.data(20, seed=1),
            checkpoint_minutes=0,
        )
    assert Checkpoints(tmp_path / "a" / "checkpoints").read(pytest.fail).state["step"] == 0


def test_fit_equals_plain_torch():
    """Two steps of SGD with Nesterov momentum, weight decay and clipping, written out by hand."""
    recipe = Recipe(
        epochs=2,
        batch_size=80,
        optimizer="sgd",
        lr=0.05,
        momentum=0.9,
        clip=0.5,
        weight_decay=0.01,
        schedule="constant",
        warmup=0,
        label_smoothing=0,
        flip=False,
        shift=0,
    )
    data = tiny.data()
    torch.manual_seed(3)
    model = create_model("convnet1_50", 2, input_shape=(1, 8, 8))
    values = [value.detach().clone() for value in model.parameters()]
    reference = create_model("convnet1_50", 2, input_shape=(1, 8, 8))
    velocity = [torch.zeros_like(value) for value in values]
    for _ in range(2):
        reference.load_state_dict(
            dict(zip(dict(reference.named_parameters()), values, strict=True)), strict=False
        )
        loss = torch.nn.functional.cross_entropy(reference(data.images), data.labels)
        gradients = torch.autograd.grad(loss, list(reference.parameters()))
        norm = torch.sqrt(sum((g**2).sum() for g in gradients))
        gradients = [g * min(1, 0.5 / norm) + 0.01 * w for g, w in zip(gradients, values, strict=True)]
        velocity = [0.9 * v + g for v, g in zip(velocity, gradients, strict=True)]
        values = [w - 0.05 * (g + 0.9 * v) for w, g, v in zip(values, gradients, velocity, strict=True)]
    outcome = fit(model, data, recipe=recipe)
    for value, expected in zip(model.parameters(), values, strict=True):
        torch.testing.assert_close(value.detach(), expected, rtol=1e-4, atol=1e-5)
    assert outcome.history[0]["lr"] == 0.05


def test_batch_that_processes_cannot_share_is_refused():
    with pytest.raises(SimNetsError, match="batch_size is 16, which 3 processes"):
        loop._Loop(
            *(tiny.network(), tiny.data(), None, tiny.RECIPE, 0, World(0, 3), None, False),
            *(loop.Outcome(), Display()),
        )


def test_lines_and_picture_displays_show_every_epoch():
    for kind, terminal in ((Lines, False), (Picture, True)):
        console = Console(file=io.StringIO(), force_terminal=terminal, width=120)
        display = kind(console)
        fit(
            tiny.network(), tiny.data(), recipe=tiny.RECIPE, validation=tiny.data(10, seed=2), display=display
        )
        console.print("after")
        text = console.file.getvalue()
        assert text.endswith("after\n")  # nothing is redrawn any more
        for part in ("epoch", "loss", "images/s", "%"):
            assert part in text
    assert "4/4" in text


def test_bfloat16_trains_nearly_as_float32(finished, tmp_path, no_pictures):
    run = train(
        *(tiny.network(), tiny.data(), tmp_path / "a", tiny.RECIPE), test=tiny.data(20, seed=1), amp="bf16"
    )
    losses = [[record["loss"] for record in r.history] for r in (run, finished)]
    assert losses[0] != losses[1]
    assert losses[0] == pytest.approx(losses[1], rel=0.05)
    with pytest.raises(SimNetsError, match="amp is 'fp8'"):
        train(tiny.network(), tiny.data(), tmp_path / "b", tiny.RECIPE, test=tiny.data(20, seed=1), amp="fp8")


@pytest.mark.parametrize(("capabilities", "said"), [({}, True), ({"amx_bf16": True}, False)])
def test_emulated_bfloat16_is_pointed_out(capabilities, said, tmp_path, no_pictures, monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"architecture": "x86_64"} | capabilities)
    lines = []
    display = Display()
    display.say = lines.append
    arguments = (tiny.network(), tiny.data(), tmp_path / "a", tiny.RECIPE)
    train(*arguments, test=tiny.data(20, seed=1), amp="bf16", display=display)
    assert any("no bfloat16 arithmetic; --amp off is faster" in line for line in lines) == said


def test_tensorboard_gets_every_epoch(tmp_path, no_pictures, monkeypatch):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    arguments = (tiny.network(), tiny.data(), tmp_path / "a", tiny.RECIPE)
    run = train(*arguments, test=tiny.data(20, seed=1), tensorboard=True)
    events = accumulator.EventAccumulator(str(tmp_path / "a" / "tensorboard")).Reload()
    logged = [(event.step, event.value) for event in events.Scalars("loss")]
    assert logged == [(r["step"], pytest.approx(r["loss"])) for r in run.history]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(SimNetsError, match="tensorboard is not installed"):
        train(*arguments[:2], tmp_path / "b", tiny.RECIPE, test=tiny.data(20, seed=1), tensorboard=True)
