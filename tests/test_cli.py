"""The command line: what it prints, and how it refuses."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from simnets.cli import COMMANDS, main
from simnets.models import create_model, load, save, shipped_accuracies
from simnets.models.registry import WEIGHTS
from simnets.training import RECIPES, report


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A weights file, data and pictures that fit it."""
    folder = tmp_path_factory.mktemp("files")
    torch.manual_seed(0)
    model = create_model("convnet1_50", 2, input_shape=(3, 8, 8))
    model.classes = ("dark", "light")
    save(model, folder / "model.safetensors")
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (40, 8, 8, 3), dtype=np.uint8)
    labels = np.arange(40) % 2
    np.savez(folder / "data.npz", images=images, labels=labels, classes=np.array(["dark", "light"]))
    for c, name in enumerate(("dark", "light")):
        (folder / "pictures" / name).mkdir(parents=True)
        for i in range(10):
            picture = Image.fromarray(np.full((20 + i, 30, 3), 200 * c + i, dtype=np.uint8))
            picture.save(folder / "pictures" / name / f"{i}.png")
    (folder / "broken.png").write_bytes(b"not a picture")
    return folder


def run(capsys, *arguments):
    code = main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


# -- help ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", COMMANDS)
def test_every_help_shows_an_example(capsys, command):
    with pytest.raises(SystemExit) as stopped:
        main([*command.split(), "--help"])
    assert stopped.value.code == 0
    assert f"Example: simnets {command}" in capsys.readouterr().out


def test_overview_names_every_command(capsys):
    code, out, _ = run(capsys)
    assert code == 0
    assert all(command in out for command in COMMANDS)


def test_train_help_shows_the_values_of_the_chosen_recipe(capsys):
    for recipe in RECIPES:
        with pytest.raises(SystemExit):
            main(["train", "--recipe", recipe, "--data", "cifar10", "--help"])
        words = " ".join(capsys.readouterr().out.replace("│", " ").split())
        assert f"Passes over the training images. (default: {RECIPES[recipe].epochs})" in words
        assert "--label-smoothing" in words
        assert "--name" not in words


# -- what goes right -------------------------------------------------------------------------------------


def test_train_evaluate_predict(capsys, folder, tmp_path):
    out = tmp_path / "run"
    options = ["--data", folder / "pictures", "--image-size", 8, "--model", "convnet1_50", "--out", out]
    code, text, _ = run(capsys, "train", *options, "--epochs", 30, "--batch-size", 8, "--lr", 0.01)
    assert code == 0
    assert "epoch 30/30" in text
    assert "test accuracy 100.00%" in text
    config = json.loads((out / "config.json").read_text())
    assert (config["recipe"]["epochs"], config["recipe"]["lr"], config["recipe"]["name"]) == (
        30,
        0.01,
        "fast",
    )
    code, text, _ = run(capsys, "train", *options, "--epochs", 30, "--batch-size", 8, "--lr", 0.01)
    assert "nothing to do" in text

    model = out / "model.safetensors"
    code, text, _ = run(capsys, "evaluate", model, "--data", folder / "pictures", "--json")
    assert json.loads(text)["accuracy"] == 1.0
    code, text, _ = run(capsys, "evaluate", model, "--data", folder / "pictures")
    assert "accuracy 100.00% on 4 images" in text

    pictures = [folder / "pictures" / name / "3.png" for name in ("light", "dark")]
    code, text, _ = run(capsys, "predict", model, *pictures, "--top", 1, "--json")
    assert [p["top"][0]["class"] for p in json.loads(text)] == ["light", "dark"]
    code, text, _ = run(capsys, "predict", model, *pictures)
    lines = text.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith(f"{pictures[0]}: light ")


@pytest.mark.parametrize("auto", [False, True])
def test_pretrain_leaves_a_network_that_can_be_trained(capsys, folder, tmp_path, auto, monkeypatch):
    out = tmp_path / "started"
    options = ["--data", folder / "data.npz", "--model", "simnet_mlpconv", "--patches", 500]
    code, text, _ = run(capsys, "pretrain", *options, "--out", out, *(["--auto"] if auto else []))
    assert code == 0
    assert "log-likelihood" in text
    layer = load(out / "model.safetensors").spec.layers[0]
    assert (
        (layer.whitened, layer.templates) != (32, 64)
        if auto
        else (layer.whitened, layer.templates) == (32, 64)
    )
    assert json.loads((out / "pretrain.json").read_text())["layers"][0]["templates"] == layer.templates
    assert list(out.glob("*.png"))
    monkeypatch.setattr(report, "files", lambda *args: {})
    command = ["train", "--model", out / "model.safetensors", "--data", folder / "data.npz", "--label-start"]
    code, text, _ = run(capsys, *command, "--out", tmp_path / "run", "--epochs", 1)
    assert code == 0
    assert "pre-trained" not in text
    assert "offsets started" in text


def test_models_and_inspect(capsys, folder, tmp_path):
    code, text, _ = run(capsys, "models")
    assert code == 0
    assert "simnet2" in text
    assert "145,578" in text
    assert f"simnet2-cifar10 {shipped_accuracies()['simnet2-cifar10']:.2%}" in " ".join(text.split())
    code, text, _ = run(capsys, "inspect", "simnet3_compact", "--out", tmp_path / "drawn")
    assert code == 0
    assert "classify" in text
    drawn = sorted(path.name for path in (tmp_path / "drawn").iterdir())
    expected = [
        f"layers_{i}_conv_similarity_{f}" for i in range(3) for f in ("filters", "templates", "weights")
    ]
    assert drawn == sorted(f"{name}.png" for name in [*expected, "classify_offsets"])
    code, text, _ = run(capsys, "inspect", folder / "model.safetensors")
    assert code == 0
    assert "50" in text
    model = create_model("simnet_mlpconv", 2, input_shape=(3, 8, 8))
    model.scale = 4.0
    model.fold()
    save(model, tmp_path / "folded.safetensors")
    assert "β=0.25" in run(capsys, "inspect", tmp_path / "folded.safetensors")[1]


def test_weights_in_the_box_go_by_their_names(capsys, tmp_path, monkeypatch):
    Image.new("RGB", (40, 30), "navy").save(tmp_path / "sea.png")
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (20, 32, 32, 3), dtype=np.uint8), np.arange(20) % 10
    names = np.array(load(WEIGHTS / "simnet3_compact-cifar10.safetensors").classes)
    np.savez(tmp_path / "data.npz", images=images, labels=labels, classes=names)
    code, text, _ = run(capsys, "predict", "simnet3_compact-cifar10", tmp_path / "sea.png")
    assert code == 0
    assert sum(name in text for name in names) == 5
    code, text, _ = run(capsys, "evaluate", "simnet3_compact-cifar10", "--data", tmp_path / "data.npz")
    assert code == 0
    assert "on 4 images" in text  # a fifth is the test part
    assert run(capsys, "inspect", "simnet3_compact-cifar10")[0] == 0
    monkeypatch.chdir(tmp_path)  # what is not said to go elsewhere goes here, and not into the package
    assert run(capsys, "export", "simnet3_compact-cifar10", "--to", "c")[0] == 0
    assert (tmp_path / "simnet3_compact-cifar10.c").is_file()
    monkeypatch.setattr(report, "files", lambda *args: {})
    command = ["train", "--model", "simnet3_compact-cifar10", "--data", "data.npz", "--out", "run"]
    code, text, _ = run(capsys, *command, "--epochs", 1)
    assert code == 0
    assert "pre-trained" not in text
    code, _, err = run(capsys, "evaluate", "simnet3_compact", "--data", "digits")
    assert code == 2
    assert "a network without weights; in the box it has simnet3_compact-cifar10" in err


def test_export_and_benchmark(capsys, folder, tmp_path):
    pytest.importorskip("onnxruntime")
    options = ["--data", folder / "data.npz", "--out", tmp_path / "a.onnx"]
    code, text, _ = run(capsys, "export", folder / "model.safetensors", "--to", "onnx", *options)
    assert code == 0
    assert "the first class is the same for 100.00%" in text
    assert (tmp_path / "a.onnx").stat().st_size > 1000
    code, text, err = run(capsys, "export", folder / "model.safetensors", *options)
    assert code == 2
    assert "a.onnx" in err
    options = ["--engines", "eager", "onnx", "--batches", 1, "--threads", 1, "--rounds", 2]
    options += ["--data", folder / "data.npz"]
    code, text, _ = run(capsys, "benchmark", folder / "model.safetensors", *options, "--out", tmp_path)
    assert code == 0
    report = json.loads((tmp_path / "benchmark.json").read_text())
    assert [m["engine"] for m in report["measurements"]] == ["eager", "onnx"]
    assert report["networks"][0]["accuracy"] is not None
    assert (tmp_path / "benchmark.png").read_bytes().startswith(b"\x89PNG")


def test_data_check_says_what_is_wrong(capsys, folder):
    code, text, _ = run(capsys, "data", "check", folder / "data.npz")
    assert code == 0
    (folder / "pictures" / "dark" / "broken.png").write_bytes(b"")
    try:
        code, text, _ = run(capsys, "data", "check", folder / "pictures")
    finally:
        (folder / "pictures" / "dark" / "broken.png").unlink()
    assert code == 2
    assert "broken.png" in text


# -- what goes wrong -------------------------------------------------------------------------------------

BAD = {
    "no such command": (["trian"], "trian"),
    "no such data": (["train", "--data", "nowhere", "--out", "{tmp}/run"], "nowhere"),
    "no such model": (["train", "--model", "simnet9", "--out", "{tmp}/run"], "simnet9"),
    "no such recipe": (["train", "--recipe", "slow", "--out", "{tmp}/run"], "slow"),
    "bad recipe value": (["train", "--lr", "-1", "--out", "{tmp}/run"], "lr is -1.0"),
    "images too small": (["train", "--model", "simnet2", "--out", "{tmp}/run"], "too small"),
    "too many held out": (["train", "--validation", "5000", "--out", "{tmp}/run"], "5000"),
    "no such device": (["train", "--device", "cuda", "--out", "{tmp}/run"], "cuda"),
    "folder in a file": (["train", "--out", "{files}/broken.png/run"], "cannot write"),
    "weights that are not": (["evaluate", "{files}/broken.png", "--data", "digits"], "broken.png"),
    "weights not there": (["evaluate", "{files}/none.safetensors", "--data", "digits"], "none.safetensors"),
    "other classes": (["evaluate", "{files}/model.safetensors", "--data", "digits"], "10 classes"),
    "no picture": (["predict", "{files}/model.safetensors", "{files}/broken.png"], "broken.png"),
    "picture not there": (["predict", "{files}/model.safetensors", "{files}/x.png"], "x.png"),
    "nothing to predict": (["predict", "{files}/model.safetensors"], "images"),
    "top 0": (["predict", "{files}/model.safetensors", "{files}/pictures/dark/1.png", "--top", "0"], "top"),
    "inspect what": (["inspect", "simnet9"], "simnet9"),
    "fetch what": (["data", "fetch", "imagenet"], "imagenet"),
    "check what": (["data", "check", "{files}/nothing"], "nothing"),
    "pretrain a ConvNet": (
        ["pretrain", "--data", "{files}/data.npz", "--model", "convnet1_50", "--out", "{tmp}/run"],
        "nothing to pre-train",
    ),
    "choose for a ConvNet": (
        ["pretrain", "--data", "{files}/data.npz", "--model", "convnet1_50", "--out", "{tmp}/run", "--auto"],
        "auto",
    ),
    "int8 of nothing": (["export", "{files}/model.safetensors", "--out", "{tmp}/x", "--int8"], "--data"),
    "benchmark what": (["benchmark", "simnet9"], "simnet9"),
    "data what": (["data"], "data"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_and_code_2(capsys, folder, tmp_path, monkeypatch, case):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    arguments, word = BAD[case]
    arguments = [a.format(tmp=tmp_path, files=folder) for a in arguments]
    code, _, err = run(capsys, *arguments)
    assert code == 2
    assert err.startswith("simnets: ")
    assert len(err.splitlines()) == 1
    assert word in err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "arguments", [["train"], ["train", "--out"], ["evaluate"], ["train", "--epochs", "x"]]
)
def test_wrong_options_are_code_2(capsys, arguments):
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    assert capsys.readouterr().err


def test_bugs_keep_their_traceback(monkeypatch):
    def bug():
        raise ValueError("not our error")

    monkeypatch.setitem(COMMANDS, "models", bug)
    with pytest.raises(ValueError, match="not our error"):
        main(["models"])


def test_control_c_saves_says_how_to_go_on_and_exits_with_130(tmp_path, folder):
    program = (
        "import os, signal, sys\n"
        "from simnets import cli\n"
        "from simnets.training import loop\n"
        "end = loop._Loop._end_epoch\n"
        "def end_epoch(self):\n"
        "    end(self)\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "loop._Loop._end_epoch = end_epoch\n"
        "sys.exit(cli.main())\n"
    )
    command = [
        "train",
        "--data",
        str(folder / "data.npz"),
        "--model",
        "convnet1_50",
        "--out",
        str(tmp_path / "run"),
    ]
    done = subprocess.run([sys.executable, "-c", program, *command], capture_output=True, text=True)
    assert done.returncode == 130, done.stderr
    assert "to go on: simnets train --data" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert [path.name[:5] for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-"] * 2


def test_full_disk_is_one_line_and_nothing_is_lost(tmp_path, folder, capsys, monkeypatch):
    """A limit on the size of files acts as a full disk; the report is the largest file."""
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    command = ["train", "--data", folder / "data.npz", "--model", "convnet1_50", "--epochs", 2]
    monkeypatch.setattr(report, "files", lambda *args: {"report.html": "x" * 1_000_000})
    resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, limits[1]))
    try:
        code, _, err = run(capsys, *command, "--out", tmp_path / "run")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert code == 2
    assert "cannot write" in err
    assert "report.html" in err
    assert len(err.splitlines()) == 1
    code, out, _ = run(capsys, *command, "--out", tmp_path / "run")
    assert code == 0
    assert "going on after step" in out
    assert load(tmp_path / "run" / "model.safetensors").classes == ("dark", "light")
