"""`export_c`: the file compiles without a warning, computes torch's scores, and needs little memory."""

from __future__ import annotations

import math
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from sklearn.datasets import load_sample_images
from torch import Tensor
from torch.nn import functional as F

import simnets
from simnets import SimNetsError
from simnets.data import load_dataset
from simnets.deploy import c_export, optimize
from simnets.deploy.c_export import export_c
from simnets.deploy.c_int8 import coded, rounded
from simnets.deploy.c_source import c_source
from simnets.models import DeepSimNet, DeepSimNetSpec, ImageClassifier, LayerSpec, SimNetBlock

INFINITY = math.inf
WARNINGS = ["-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wshadow", "-Werror"]
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]

needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")


def run(*command: str | Path, data: bytes = b"") -> str:
    done = subprocess.run(command, input=data, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def c_scores(file: Path, images: Tensor, *flags: str) -> Tensor:
    """Scores of the program in a C file, compiled with every warning as an error, and with sanitizers."""
    program = file.with_suffix(".out")
    run("gcc", *WARNINGS, *SANITIZERS, *flags, "-DSIMNETS_MAIN", file, "-lm", "-o", program)
    lines = run(program, data=images.numpy().tobytes()).splitlines()
    return torch.tensor([[float(number) for number in line.split()] for line in lines])


def digits(shape: tuple[int, ...], count: int = 3) -> Tensor:
    """Real images brought to a shape, with noise in every channel so that channels differ."""
    images = F.interpolate(load_dataset("digits", "test").images[:count].double(), shape[1:])
    noise = torch.randint(-40, 40, (count, *shape), generator=torch.Generator().manual_seed(0))
    return (images + noise).clamp(0, 255).round().to(torch.uint8)


@pytest.fixture(scope="module")
def photographs() -> Tensor:
    """32×32 pieces of two photographs."""
    crops = []
    for picture in load_sample_images().images:
        pixels = torch.from_numpy(picture.copy()).permute(2, 0, 1)
        crops += [pixels[:, top : top + 32, left : left + 32] for top in (40, 300) for left in (60, 400)]
    return torch.stack(crops).contiguous()


def randomised(model: ImageClassifier) -> ImageClassifier:
    """Everything that starts at a special value gets another one."""
    generator = torch.Generator().manual_seed(0)
    channels = len(model.pixel_mean)
    model.set_pixel_statistics(
        0.3 + 0.4 * torch.rand(channels, generator=generator), 0.2 + torch.rand(channels, generator=generator)
    )
    for module in model.modules():
        if isinstance(module, SimNetBlock):
            module.padding_mean.copy_(torch.randn(len(module.padding_mean), generator=generator))
    return model.eval()


def assert_same(found: Tensor, expected: Tensor, tolerance: float) -> None:
    assert found.shape == expected.shape
    assert float((found - expected).abs().max()) <= tolerance * float(expected.abs().max())


# ── real networks on real images ─────────────────────────────────────────────────────────────────────────


@needs_gcc
@pytest.mark.parametrize(
    ("name", "ram", "flash"), [("simnet3_compact", 16_000, 25_000), ("simnet2", 26_000, 263_000)]
)
def test_networks_of_the_paper(name: str, ram: int, flash: int, photographs: Tensor, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = randomised(simnets.create_model(name))
    with torch.no_grad():
        expected = model(photographs)
    file, small = tmp_path / "float.c", tmp_path / "int8.c"
    report = export_c(model, file, images=photographs)
    assert_same(c_scores(file, photographs), expected, 1e-5)
    assert report.comparison is not None
    assert report.comparison.images == len(photographs)
    assert report.comparison.difference <= 1e-5 * float(expected.abs().max())
    assert report.sizes is not None
    assert report.sizes.stack is not None
    assert report.sizes.code is not None
    assert report.memory + report.sizes.stack < ram < 64_000
    assert report.weights + report.sizes.code < flash

    int8 = export_c(model, small, int8=True, images=photographs)
    assert int8.weights < 0.3 * report.weights
    with torch.no_grad():
        as_coded = rounded(optimize(model))(photographs)
    assert_same(c_scores(small, photographs), as_coded, 1e-5)
    assert_same(as_coded, expected, 0.05)


@needs_gcc
def test_a_trained_network_keeps_its_accuracy(trained: DeepSimNet, tmp_path: Path) -> None:
    test = load_dataset("digits", "test")
    with torch.no_grad():
        expected = trained(test.images)
    accuracy = float((expected.argmax(1) == test.labels).double().mean())
    assert accuracy > 0.9
    for int8 in (False, True):
        file = tmp_path / f"{int8}.c"
        report = export_c(trained, file, int8=int8, test=test)
        scores = c_scores(file, test.images)
        found = float((scores.argmax(1) == test.labels).double().mean())
        assert found == pytest.approx(accuracy, abs=0.011 if int8 else 1e-9)
        assert report.comparison is not None
        assert report.comparison.accuracy == pytest.approx(found, abs=0.003)
        assert report.comparison.float_accuracy == pytest.approx(accuracy)
        assert "points lost" in report.lines()[-1]


# ── every form of every operator ─────────────────────────────────────────────────────────────────────────

VARIANTS: dict[str, dict[str, Any]] = {
    "l1, padded": {"p": 1.0, "padding": (2, 1)},
    "p between, bias": {"p": (0.5, 1.5), "bias_mode": "learned"},
    "p learned": {"p": (1.3, 2.0), "p_mode": "learned"},
    "rectified, padded": {"rectify": (True, False), "bias_mode": "learned", "padding": 1},
    "depthwise": {"depthwise": (False, True), "whitened": (5, 6), "padding": 1},
    "contrast": {"contrast": (0.1, 0.0)},
    "rectified, average": {"rectify": True, "bias_mode": "learned", "pool_beta": 0.0},
    "p = 3, no weights": {"p": 3.0, "weights_mode": "none", "conv_bias_mode": "none"},
    "linear, not merged": {"kind": "linear", "whitened": 4, "templates": 40},
    "linear patches, minimum": {"kind": "linear", "whitened": None, "pool_beta": -INFINITY},
    "l2 patches, padded": {"whitened": None, "padding": 1},
    "l1 patches": {"whitened": None, "p": 1.0},
    "strides beyond the window": {"stride": (3, 1), "field": (2, 1), "pool": (1, 0), "pool_stride": 2},
    "average, rounded up": {"pool_beta": 0.0, "pool_ceil": True},
    "MEX pooling, learned": {"pool_beta": (2.0, -3.0), "pool_beta_mode": "learned", "pool": (3, 2)},
    "β nearly 0": {"classify_beta": 1e-4, "global_beta": 1e-3, "pool_beta": 1e-4, "pool_ceil": True},
    "β < 0": {"classify_beta": -2.0, "global_beta": -0.7},
    "β learned": {"classify_beta": 0.4, "classify_beta_mode": "learned", "global_beta": 0.7},
    "maximum of maxima": {"classify_beta": INFINITY, "global_beta": INFINITY},
    "mean of minima": {"classify_beta": -INFINITY},
    "mean of means": {"classify_beta": 0.0, "global_beta": -INFINITY},
}


def small(shape: tuple[int, int, int], n: tuple[int, int], classes: int, **options: Any) -> DeepSimNet:
    """Two layers that fit small images: 3×3 and max pooling, 3×3."""
    layers = (
        LayerSpec(whitened=5, templates=n[0], field=3, pool=3),
        LayerSpec(whitened=5, templates=n[1], field=3),
    )
    spec = DeepSimNetSpec(num_classes=classes, layers=layers)
    return spec.replace(input_shape=shape, **options).build()


def variant(options: dict[str, Any]) -> DeepSimNet:
    torch.manual_seed(1)
    model = small((2, 13, 12), (6, 7), 4, **options)
    model.scale = 1.5
    randomised(model)
    return model


@needs_gcc
@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS.keys())
def test_every_p_and_beta(options: dict[str, Any], tmp_path: Path) -> None:
    model = variant(options)
    images = digits((2, 13, 12))
    file = tmp_path / "network.c"
    file.write_text(c_source(optimize(model)).text)
    with torch.no_grad():
        assert_same(c_scores(file, images), model(images), 1e-5)


@needs_gcc
@pytest.mark.parametrize(
    "options",
    [{"p": 1.3, "padding": 1}, {"whitened": None}, {"kind": "linear"}, {"contrast": (0.1, 0.0)}],
    ids=str,
)
def test_int8_of_every_similarity(options: dict[str, Any], tmp_path: Path) -> None:
    network = rounded(optimize(variant(options)))
    images = digits((2, 13, 12))
    file = tmp_path / "network.c"
    source = c_source(network, int8=True)
    file.write_text(source.text)
    with torch.no_grad():
        assert_same(c_scores(file, images), network(images), 1e-5)


@needs_gcc
def test_offsets_of_minus_infinity(tmp_path: Path) -> None:
    # class 0 has only template 3, and that is the least similar; class 1 has none
    model = variant({})
    with torch.no_grad():
        model.classify.offsets[:2] = -INFINITY
        model.classify.offsets[0, 3] = 0.0
        model.layers[-1].conv_similarity.similarity.templates[3] += 20.0
        images = digits((2, 13, 12))
        expected = model(images)
    file = tmp_path / "network.c"
    file.write_text(c_source(optimize(model)).text)
    found = c_scores(file, images, "-fno-sanitize=float-divide-by-zero")
    assert torch.equal(found[:, 1], torch.full((3,), -INFINITY))
    assert torch.equal(expected[:, 1], found[:, 1])
    assert_same(found[:, [0, 2, 3]], expected[:, [0, 2, 3]], 1e-5)


@needs_gcc
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("simnet_mlp", {"templates": 7}),
        ("simnet_mlp", {"templates": 7, "p": 1.0, "input_shape": (11,)}),
        ("nin_compact", {}),
        ("caffe_quick", {}),
        ("convnet1_50", {"channels": 6}),
        ("convnet2", {"input_shape": (2, 17, 19)}),
        ("simnet4", {"input_shape": (2, 17, 19)}),
    ],
    ids=str,
)
def test_other_chains_of_layers(name: str, options: dict[str, Any], tmp_path: Path) -> None:
    torch.manual_seed(2)
    model = simnets.create_model(name, **{"input_shape": (2, 13, 12), **options}).eval()
    images = digits((2, *model.spec.input_shape[1:]) if len(model.spec.input_shape) > 1 else (2, 13, 12))
    if len(model.spec.input_shape) == 1:
        images = images.flatten(1)[:, 50:61].contiguous()
    else:
        model = randomised(model)
    file = tmp_path / "network.c"
    file.write_text(c_source(optimize(model)).text)
    with torch.no_grad():
        assert_same(c_scores(file, images), model(images), 1e-5)


# ── the file ─────────────────────────────────────────────────────────────────────────────────────────────


def tiny(**options: Any) -> ImageClassifier:
    torch.manual_seed(0)
    options = {"whitened": 4, "templates": 6, **options}
    return simnets.create_model("simnet_mlpconv", input_shape=(1, 8, 8), **options).eval()


@needs_gcc
@pytest.mark.parametrize("int8", [False, True], ids=["float", "int8"])
def test_no_heap_and_little_static_memory(int8: bool, tmp_path: Path) -> None:
    model = variant({"p": (1.3, 2.0), "pool_beta": 2.0, "padding": 1})
    file, object_ = tmp_path / "network.c", tmp_path / "network.o"
    report = export_c(model, file, int8=int8, images=digits((2, 13, 12)))
    run("gcc", *WARNINGS, "-O3", "-c", file, "-o", object_)
    symbols = [line.split()[-2:] for line in run("nm", object_).splitlines()]
    wanted = {name for kind, name in symbols if kind == "U"}
    assert wanted <= {"expf", "logf", "expm1f", "log1pf", "powf", "memset", "memcpy", "__stack_chk_fail"}
    assert {name for kind, name in symbols if kind in "TDRBGC"} == {"simnets_classes", "simnets_classify"}
    text, data, bss, *_ = run("size", object_).splitlines()[1].split()
    assert int(bss) == report.memory
    assert int(data) <= 8 * model.spec.num_classes  # pointers to the names
    assert report.weights < int(text) < report.weights + 20_000
    run("gcc", *WARNINGS, "-DSIMNETS_STORAGE=", "-c", file, "-o", object_)
    assert run("size", object_).splitlines()[1].split()[2] == "0"


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
def test_from_cplusplus_with_names_of_any_kind(tmp_path: Path) -> None:
    model = tiny(num_classes=4)
    model.classes = ['say "a\\b"', "Straße 7", "??/", "line\nbreak"]
    images = load_dataset("digits", "test").images[:1]
    export_c(model, tmp_path / "network.c", images=images)
    (tmp_path / "use.cpp").write_text(
        """
        #include <cstdio>
        #define SIMNETS_DECLARATIONS_ONLY
        #include "network.c"
        int main() {
            unsigned char image[SIMNETS_IMAGE_SIZE];
            float scores[SIMNETS_NUM_CLASSES];
            const int size = SIMNETS_CHANNELS * SIMNETS_HEIGHT * SIMNETS_WIDTH;
            if (std::fread(image, 1, size, stdin) != sizeof image)
                return 1;
            simnets_classify(image, scores);
            for (int r = 0; r < SIMNETS_NUM_CLASSES; r++)
                std::printf("%s%c%.9g%c", simnets_classes[r], 0, static_cast<double>(scores[r]), 0);
        }
        """
    )
    run("gcc", *WARNINGS, "-c", tmp_path / "network.c", "-o", tmp_path / "network.o")
    run(
        "g++",
        "-Wall",
        "-Wextra",
        "-Werror",
        tmp_path / "use.cpp",
        tmp_path / "network.o",
        "-o",
        tmp_path / "use",
    )
    words = run(tmp_path / "use", data=images.numpy().tobytes()).split("\0")
    assert tuple(words[:-1:2]) == model.classes
    with torch.no_grad():
        assert_same(torch.tensor([[float(word) for word in words[1::2]]]), model(images), 1e-5)


@needs_gcc
def test_the_program_refuses_half_an_image(tmp_path: Path) -> None:
    file, program = tmp_path / "network.c", tmp_path / "network"
    export_c(tiny(), file)
    run("gcc", "-std=c99", "-DSIMNETS_MAIN", file, "-lm", "-o", program)
    done = subprocess.run([program], input=bytes(64 + 10), capture_output=True, check=False)
    assert done.returncode == 1
    assert len(done.stdout.splitlines()) == 1
    assert done.stderr == b"the last image has 10 bytes, expected 64\n"


def test_without_a_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIMNETS_NO_COMPILER", "1")
    report = export_c(tiny(), tmp_path / "network.c")
    assert report.comparison is None
    assert report.lines()[-1].startswith("not compared with torch: no C compiler")
    assert report.size == (tmp_path / "network.c").stat().st_size


# ── what is refused ──────────────────────────────────────────────────────────────────────────────────────


@needs_gcc
def test_a_file_that_differs_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "network.c"
    path.write_text("mine")
    with pytest.raises(SimNetsError, match=r"network\.c exists; choose another name"):
        export_c(tiny(), path)
    wrong = c_export.c_source(optimize(tiny(classify_beta=2.0)))
    monkeypatch.setattr(c_export, "c_source", lambda network, int8: wrong)
    with pytest.raises(SimNetsError, match="cannot be exported: scores of the C file and torch differ by"):
        export_c(tiny(), path, overwrite=True)
    assert path.read_text() == "mine"
    monkeypatch.undo()
    export_c(tiny(), path, overwrite=True)
    assert "simnets_classify" in path.read_text()
    assert list(tmp_path.iterdir()) == [path]


def test_a_compiler_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "false")
    with pytest.raises(SimNetsError, match="could not be checked, false: exit code 1; nothing was written"):
        export_c(tiny(), tmp_path / "network.c")
    assert not list(tmp_path.iterdir())


def test_bad_input(tmp_path: Path) -> None:
    path = tmp_path / "network.c"
    with pytest.raises(SimNetsError, match="model is a ResNet8, which cannot be exported to C"):
        export_c(simnets.create_model("resnet8"), path)
    with pytest.raises(SimNetsError, match="model is a Linear, expected a network"):
        export_c(torch.nn.Linear(2, 2), path)  # type: ignore[arg-type]
    with pytest.raises(SimNetsError, match=r"is a folder; give the name of a file, such as .*model\.c"):
        export_c(tiny(), tmp_path)
    with pytest.raises(SimNetsError, match="does not exist; make it first"):
        export_c(tiny(), tmp_path / "none" / "network.c")
    for images, message in (
        (torch.zeros(0, 1, 8, 8, dtype=torch.uint8), "images are empty"),
        (torch.zeros(2, 3, 8, 8, dtype=torch.uint8), r"expected uint8 \(N, 1, 8, 8\)"),
    ):
        with pytest.raises(SimNetsError, match=message):
            export_c(tiny(), path, images=images)
    model = tiny()
    model.layers[0].conv_similarity.similarity.templates.data[0, 0] = math.nan
    with pytest.raises(SimNetsError, match="some of its weights are not a number"):
        export_c(model, path)
    assert not list(tmp_path.iterdir())


# ── int8 ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_codes() -> None:
    torch.manual_seed(0)
    filters = torch.randn(6, 4, 5, 5, dtype=torch.float64)
    filters[2] *= 1000
    filters[3] = 0
    codes, steps = coded(filters)
    assert codes.dtype == torch.int8
    assert torch.equal(codes.abs().amax((1, 2, 3)), torch.tensor([127, 127, 127, 0, 127, 127]).to(torch.int8))
    levels = filters / steps.view(-1, 1, 1, 1)
    error = levels - codes
    assert float(error.abs().max()) < 1
    # rounding to the nearest would leave sums of 25 errors
    assert float(error.sum((2, 3)).abs().max()) <= 0.5 + 1e-9
    assert float((levels - levels.round()).sum((2, 3)).abs().max()) > 1
    again, same_steps = coded(codes * steps.view(-1, 1, 1, 1))
    assert torch.equal(again, codes)
    torch.testing.assert_close(same_steps, steps)
