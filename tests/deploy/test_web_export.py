"""`export_web`: what is written, and what the page does in a real browser."""

from __future__ import annotations

import hashlib
import io
import json
import re
import shutil
import tarfile
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from browser import ENTER, SPACE, TAB, Browser, browser, missing, serving
from PIL import Image
from sklearn.datasets import load_sample_image
from torch import Tensor

import simnets
from simnets import SimNetsError
from simnets.data import ImageDataset, load_dataset, read_image
from simnets.data import download as downloading
from simnets.data.official import Download
from simnets.deploy import ExportReport, WebReport, export_web, web_export, web_runtime
from simnets.models import DeepSimNet, ImageClassifier
from simnets.nn import ConvSimilarity2d

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

# Names that would break a page which pastes them into its HTML, or that has no room for them.
CLASSES = ("<b>zero</b>", "&one;", "W" * 60, *(f"class {digit}" for digit in range(3, 10)))


@pytest.fixture(scope="module")
def digits() -> ImageDataset:
    found = load_dataset("digits", "test")
    return ImageDataset(found.images, found.labels, CLASSES, "digits")


@pytest.fixture(scope="module")
def model(trained: DeepSimNet) -> DeepSimNet:
    named = deepcopy(trained)
    named.classes = CLASSES
    return named


@pytest.fixture(scope="module")
def runtime() -> dict[str, bytes]:
    try:
        return web_runtime.runtime_files()
    except SimNetsError as error:
        pytest.skip(f"left out, the page cannot be built: {error}")


@pytest.fixture(scope="module")
def report(
    model: DeepSimNet, digits: ImageDataset, runtime: dict[str, bytes], tmp_path_factory: Any
) -> WebReport:
    return export_web(model, tmp_path_factory.mktemp("web") / "page", examples=digits)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of everything around it: no tracing, no 14 MB."""
    monkeypatch.setattr(web_export, "runtime_files", lambda *arguments: {"ort.mjs": b"script"})
    monkeypatch.setattr(web_export, "_maps_graph", lambda *arguments: b"maps")

    def export_onnx(model: ImageClassifier, path: Path, **options: Any) -> ExportReport:
        path.write_bytes(b"onnx")
        return ExportReport(
            path=path, opset=18, size=4, int8=False, images=1, difference=0, scale=1, agreement=1
        )

    monkeypatch.setattr(web_export, "export_onnx", export_onnx)


def tiny(**options: Any) -> ImageClassifier:
    torch.manual_seed(0)
    return simnets.create_model("simnet_mlpconv", input_shape=(1, 8, 8), whitened=4, templates=6, **options)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# ── what is written ──────────────────────────────────────────────────────────────────────────────────────


def test_the_folder_has_everything(report: WebReport, digits: ImageDataset) -> None:
    files = contents(report.folder)
    assert files.keys() == {
        *("index.html", "app.js", "style.css", "page.json", "model.onnx", "templates.onnx", "templates.png"),
        *(f"runtime/{name}" for name in web_runtime.SHA256),
        *(f"examples/{number:02}.png" for number in range(1, 13)),
    }
    assert (report.files, report.size) == (len(files), sum(map(len, files.values())))
    assert (report.examples, report.templates, report.onnx.path) == (12, 16, report.folder / "model.onnx")
    assert "http://localhost:8000" in report.lines()[-1]
    assert list(report.folder.parent.iterdir()) == [report.folder]
    page = json.loads(files["page.json"])
    assert page["classes"] == list(CLASSES)
    assert page["templates"] == {"tile": [3, 3], "stride": 1, "padding": 1, "patches": True}
    # one of each class, then from the beginning again; pixels as they are
    assert [example["label"] for example in page["examples"]] == [*CLASSES, *CLASSES[:2]]
    for example in page["examples"]:
        pixels = np.asarray(Image.open(report.folder / example["file"]))
        same = (digits.images[:, 0].numpy() == pixels).all((1, 2))
        assert digits.classes[int(digits.labels[int(same.argmax())])] == example["label"]
        assert same.any()


def similarity_maps(model: DeepSimNet, images: Tensor) -> np.ndarray[Any, Any]:
    """−Σ u·(W·x + bias − z)² for every patch, written out."""
    layer = model.layers[0].conv_similarity
    assert isinstance(layer, ConvSimilarity2d)
    z, u, w, bias = (
        t.detach().double().numpy()
        for t in (layer.similarity.templates, layer.similarity.weights, layer.filters, layer.conv_bias)
    )
    x = (images.double().numpy() / 255 - model.pixel_mean.numpy()) / model.pixel_std.numpy()
    mean = float(model.layers[0].padding_mean)
    x = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=mean)
    patches = np.lib.stride_tricks.sliding_window_view(x, (3, 3), (2, 3))[:, 0]
    y = np.einsum("nijhw,dhw->nijd", patches, w[:, 0]) + bias
    return -(u * (y[..., None, :] - z) ** 2).sum(-1).transpose(0, 3, 1, 2)


def test_maps_of_the_first_layer(report: WebReport, model: DeepSimNet, digits: ImageDataset) -> None:
    session = onnxruntime.InferenceSession(report.folder / "templates.onnx")
    images = digits.images[:5]
    found = session.run(["maps"], {"images": images.numpy()})[0]
    np.testing.assert_allclose(found, similarity_maps(model, images), rtol=1e-4, atol=1e-4)


def test_pictures_of_the_templates(report: WebReport, model: DeepSimNet, digits: ImageDataset) -> None:
    """The first one, from the patches that are most similar to it."""
    strip = np.asarray(Image.open(report.folder / "templates.png"))
    assert strip.shape == (3, 16 * 3)
    images = digits.images[::3]  # 359 digits, of which at most 128 are looked at
    similarities = similarity_maps(model, images)[:, 0].ravel()
    padded = np.pad(images[:, 0].numpy(), ((0, 0), (1, 1), (1, 1)), mode="edge")
    patches = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (1, 2)).reshape(-1, 3, 3)
    nearest = np.argsort(-similarities)[:50]
    assert np.abs(strip[:, :3] - patches[nearest].mean(0)).max() <= 1


@pytest.mark.usefixtures("quick")
def test_networks_without_patches_or_templates(tmp_path: Path) -> None:
    for name, templates in (("caffe_quick", 0), ("simnet_mlp", 5)):
        options = {"templates": 5, "input_shape": (3, 4, 6)} if templates else {}
        network = simnets.create_model(name, **options)
        report = export_web(network, tmp_path / name)
        page = json.loads((tmp_path / name / "page.json").read_text())
        assert (report.templates, report.examples, page["examples"]) == (templates, 0, [])
        assert (page["templates"] is not None) == (templates > 0)
        assert (tmp_path / name / "templates.onnx").exists() == (templates > 0)
    assert Image.open(tmp_path / name / "templates.png").size == (5 * 6, 4)


@pytest.mark.usefixtures("quick")
def test_nothing_is_overwritten_unasked(tmp_path: Path) -> None:
    folder = tmp_path / "page"
    folder.mkdir()
    export_web(tiny(), folder)  # empty: nothing to lose
    (folder / "notes.txt").write_text("mine")
    (folder / "index.html").write_text("old")
    before = contents(folder)
    with pytest.raises(SimNetsError, match="page is not empty; choose another folder, or overwrite=True"):
        export_web(tiny(), folder)
    assert contents(folder) == before
    export_web(tiny(), folder, overwrite=True)
    after = contents(folder)
    assert after.keys() == before.keys()
    assert after["notes.txt"] == b"mine"
    assert after["index.html"].startswith(b"<!doctype html>")


@pytest.mark.usefixtures("quick")
def test_a_failure_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*arguments: Any) -> bytes:
        raise SimNetsError("model cannot be exported: because")

    monkeypatch.setattr(web_export, "_maps_graph", fails)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    for name in ("new", "full"):
        with pytest.raises(SimNetsError, match="model cannot be exported: because"):
            export_web(tiny(), tmp_path / name, overwrite=True)
    assert contents(tmp_path) == {"full/notes.txt": b"mine"}
    assert [path.name for path in tmp_path.iterdir()] == ["full"]


@pytest.mark.usefixtures("quick")
def test_bad_input(tmp_path: Path, digits: ImageDataset) -> None:
    (tmp_path / "file").write_text("")
    vectors = simnets.create_model("simnet_mlp", input_shape=(20,), templates=4)
    for network, folder, examples, message in (
        (tiny(), "file", None, "file is a file; give the name of a folder"),
        (tiny(), "none/page", None, "the folder .*none does not exist; make it first"),
        (torch.nn.Linear(2, 2), "page", None, "model is a Linear, expected a network of simnets"),
        (vectors, "page", None, r"the network takes \(20,\); a page needs pictures"),
        (tiny(), "page", digits.images[:0], "examples are empty"),
        (tiny(), "page", digits.images.float(), "examples are torch.float32"),
        (tiny(num_classes=3), "page", digits, "classes"),
    ):
        with pytest.raises(SimNetsError, match=message) as caught:
            export_web(network, tmp_path / folder, examples=examples)  # type: ignore[arg-type]
        assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


# ── ONNX Runtime Web's files ─────────────────────────────────────────────────────────────────────────────

FILES = {web_runtime.SCRIPT: b"a script", web_runtime.WASM: b"\0asm"}


def package(path: Path, files: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return path


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A server that has a package with other files in it too; the cache is empty."""
    served = tmp_path / "registry"
    served.mkdir()
    files = {f"package/dist/{name}": content for name, content in FILES.items()}
    path = package(served / "ort.tgz", {"../outside": b"no", "package/README.md": b"hello", **files})
    monkeypatch.setattr(
        web_runtime, "SHA256", {name: hashlib.sha256(content).hexdigest() for name, content in FILES.items()}
    )
    monkeypatch.setattr(web_runtime, "user_cache_path", lambda name: tmp_path / "cache")
    monkeypatch.delenv(web_runtime.VARIABLE, raising=False)
    monkeypatch.setattr(downloading, "PAUSES", (0.0,))
    content = path.read_bytes()
    with serving(served) as address:
        item = Download(f"{address}ort.tgz", len(content), hashlib.sha256(content).hexdigest())
        monkeypatch.setattr(web_runtime, "PACKAGE", item)
        yield path


def test_the_package_is_fetched_once(registry: Path, tmp_path: Path) -> None:
    told = []
    assert web_runtime.runtime_files(progress=lambda *step: told.append(step)) == FILES
    assert told[-1][1] == told[-1][2] == registry.stat().st_size
    registry.rename(tmp_path / "away.tgz")
    assert web_runtime.runtime_files() == FILES
    # nothing but the two files was ever written, and a damaged one is not used
    cache = tmp_path / "cache" / f"onnxruntime-web-{web_runtime.VERSION}"
    assert contents(tmp_path / "cache").keys() == {f"{cache.name}/{name}" for name in FILES}
    (cache / web_runtime.WASM).write_bytes(b"damaged")
    (tmp_path / "away.tgz").rename(registry)
    assert web_runtime.runtime_files() == FILES


def test_without_the_package_one_line_says_so(registry: Path, tmp_path: Path) -> None:
    content = registry.read_bytes()
    for broken in (None, content[:-1] + b"x"):
        registry.unlink(missing_ok=True)
        if broken is not None:
            registry.write_bytes(broken)
        with pytest.raises(SimNetsError, match=r"needs ONNX Runtime Web .* set SIMNETS_ORT_WEB") as caught:
            web_runtime.runtime_files()
        assert "\n" not in str(caught.value)
        assert contents(tmp_path / "cache") == {}


def test_a_copy_of_the_package(registry: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert web_runtime.runtime_files(registry) == FILES
    dist = tmp_path / "dist"
    dist.mkdir()
    for name, content in FILES.items():
        (dist / name).write_bytes(content)
    monkeypatch.setenv(web_runtime.VARIABLE, str(dist))
    assert web_runtime.runtime_files() == FILES
    (dist / web_runtime.WASM).write_bytes(b"of another version")
    (tmp_path / "text.tgz").write_text("no archive")
    other = package(tmp_path / "other.tgz", {"package/dist/other.js": b""})
    link = package(tmp_path / "link.tgz", {})
    with tarfile.open(link, "w:gz") as tar:
        for name in FILES:
            member = tarfile.TarInfo(f"package/dist/{name}")
            member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
            tar.addfile(member)
    for copy, message in (
        (dist, f"{web_runtime.WASM} is not that of onnxruntime-web"),
        (tmp_path, f"{web_runtime.SCRIPT} is missing"),
        (tmp_path / "none", "there is no such copy of ONNX Runtime Web"),
        (tmp_path / "text.tgz", "is not npm's package onnxruntime-web"),
        (other, "is not npm's package onnxruntime-web"),
        (link, "is not npm's package onnxruntime-web"),
    ):
        with pytest.raises(SimNetsError, match=message):
            web_runtime.runtime_files(copy)


# ── the page in a browser ────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    if (reason := missing()) is not None:
        pytest.skip(f"left out, the page is not tried: {reason}")
    with browser() as started:
        yield started


@pytest.fixture(scope="module")
def address(report: WebReport) -> Iterator[str]:
    with serving(report.folder) as found:
        yield found


@pytest.fixture
def page(chromium: Browser, address: str) -> Iterator[Browser]:
    chromium.open(address)
    chromium.wait("document.getElementById('status').textContent === 'Ready.'")
    yield chromium
    chromium.devtools("Emulation.clearDeviceMetricsOverride")


def status(page: Browser) -> str:
    return str(page.run("return document.getElementById('status').textContent"))


def settled(page: Browser, title: str) -> None:
    """Until the page is done with what it calls `title`, and has a result."""
    page.wait(f"document.getElementById('status').textContent.startsWith({json.dumps(title + ': most')})")
    page.wait("document.querySelector('main').ariaBusy === 'false'")
    assert page.run("return !document.getElementById('result').hidden")


def refused(page: Browser, message: str) -> None:
    """Until the page says what is wrong; an earlier result must be gone."""
    page.wait("document.getElementById('status').classList.contains('problem')")
    assert re.search(message, status(page)), status(page)
    assert page.run("return document.getElementById('result').hidden")
    assert page.run("return document.getElementById('responses').hidden")


def shown_scores(page: Browser) -> Tensor:
    return torch.tensor(json.loads(page.run("return document.getElementById('classes').dataset.scores")))


def example(report: WebReport, number: int) -> Tensor:
    return torch.from_numpy(np.array(Image.open(report.folder / f"examples/{number:02}.png")))[None, None]


def test_scores_are_those_of_torch(page: Browser, report: WebReport, model: DeepSimNet) -> None:
    for number in (1, 2, 3, 12):
        page.run("document.querySelectorAll('#examples button')[arguments[0]].click()", number - 1)
        settled(page, f"Example {number} (labelled {CLASSES[(number - 1) % 10]})")
        with torch.no_grad():
            expected = model(example(report, number))[0]
        assert (shown_scores(page) - expected).abs().max() <= 1e-4
        order = expected.argsort(descending=True)
        rows = page.run(
            "return Array.from(document.querySelectorAll('#classes li'), (li) => "
            "Array.from(li.querySelectorAll(':scope > span:not(.bar)'), (cell) => cell.textContent))"
        )
        percent = [f"{100 * share:.1f}\xa0%" for share in expected.softmax(0)[order].tolist()]
        assert rows == [[CLASSES[int(c)], p] for c, p in zip(order, percent, strict=True)]
        assert status(page).endswith(f"most likely {CLASSES[int(order[0])]}, {percent[0]}.")
        pressed = page.run(
            "return Array.from(document.querySelectorAll('[aria-pressed=true] img'), (i) => i.alt)"
        )
        assert len(pressed) == 1
        assert status(page).startswith(pressed[0])
    assert re.fullmatch(
        r"\d+(\.\d+)? ms a picture, .*", page.run("return document.getElementById('latency').textContent")
    )
    assert page.run("return document.querySelectorAll('main b').length") == 1  # no class name became HTML


def test_templates_and_where_they_responded(page: Browser, report: WebReport, model: DeepSimNet) -> None:
    page.run("document.querySelectorAll('#examples button')[3].click()")
    settled(page, "Example 4 (labelled class 3)")
    maps = similarity_maps(model, example(report, 4))[0]
    shares = np.bincount(maps.argmax(0).ravel(), minlength=16) / 64
    captions = page.run("return Array.from(document.querySelectorAll('#templates p'), (p) => p.textContent)")
    sentence = re.compile(r"Template (\d+): the most similar at (.*)\s% of the positions\.")
    found = [sentence.fullmatch(caption) for caption in captions]
    assert len(found) == 6
    assert all(float(m[2]) == round(100 * shares[int(m[1]) - 1], 1) for m in found if m)
    assert sorted((shares[int(m[1]) - 1] for m in found if m), reverse=True) == sorted(shares)[:-7:-1]
    # the heat map is orange at the pixel of the strongest position, whose patches lie on the padded image
    strongest = found[0]
    assert strongest
    row, column = np.argwhere(maps.argmax(0) == int(strongest[1]) - 1)[0].tolist()
    red, _, blue, _ = page.run(
        "const heat = document.querySelector('#templates .heat'), zoom = heat.width / 8;"
        "return Array.from(heat.getContext('2d').getImageData("
        "(arguments[1] + 0.5) * zoom, (arguments[0] + 0.5) * zoom, 1, 1).data)",
        row,
        column,
    )
    assert red - blue > 100


def photo() -> Image.Image:
    """A photograph, wider than high."""
    return Image.fromarray(load_sample_image("china.jpg")[40:340:2, 100:600:2])


def test_pictures_of_any_size(page: Browser, report: WebReport, tmp_path: Path) -> None:
    """Scaled, cropped, made grey and laid on white as `read_image` does it, to a rounding."""
    photo().save(tmp_path / "photo.png")
    clear = photo().crop((0, 0, 90, 120))
    clear.putalpha(Image.linear_gradient("L").resize(clear.size).point(lambda value: 255 * (value > 99)))
    clear.save(tmp_path / "clear.png")
    photo().resize((21, 19)).save(tmp_path / "small.png")
    for name in ("photo.png", "clear.png", "small.png"):
        shutil.copy(tmp_path / name, report.folder / name)
        for channels, height, width in ((3, 32, 32), (1, 8, 8), (3, 20, 44)):
            found = page.run(
                "return fetch(arguments[0]).then((r) => r.blob())"
                ".then((blob) => toPixels(blob, arguments[1])).then((pixels) => Array.from(pixels))",
                name,
                [channels, height, width],
            )
            expected = read_image(tmp_path / name, (height, width), channels).flatten().int()
            difference = (torch.tensor(found) - expected).abs()
            assert difference.max() <= 1
            assert (difference == 0).double().mean() >= 0.75
        (report.folder / name).unlink()


def test_a_file_is_opened_dropped_and_pasted(
    page: Browser, report: WebReport, model: DeepSimNet, tmp_path: Path
) -> None:
    image = example(report, 5)
    Image.fromarray(image[0, 0].numpy()).save(tmp_path / "mine.png")
    with torch.no_grad():
        expected = model(image)[0]
    page.choose_file("#file", tmp_path / "mine.png")
    settled(page, "mine.png")
    assert (shown_scores(page) - expected).abs().max() <= 1e-4
    for kind, carrier in (("Drag", "dataTransfer"), ("Clipboard", "clipboardData")):
        page.run(
            "const [kind, carrier] = arguments, data = new DataTransfer();"
            "return fetch('examples/05.png').then((r) => r.blob()).then((blob) => {"
            "  data.items.add(new File([blob], `${kind}.png`));"
            "  const event = new window[`${kind}Event`](kind === 'Drag' ? 'drop' : 'paste',"
            "    {bubbles: true, [carrier]: data});"
            "  document.querySelector('h1').dispatchEvent(event); })",
            kind,
            carrier,
        )
        settled(page, f"{kind}.png")
        assert (shown_scores(page) - expected).abs().max() <= 1e-4


def test_what_is_not_a_picture(page: Browser, report: WebReport, tmp_path: Path) -> None:
    page.run("document.querySelector('#examples button').click()")
    settled(page, f"Example 1 (labelled {CLASSES[0]})")
    (tmp_path / "notes.txt").write_text("no picture")
    page.choose_file("#file", tmp_path / "notes.txt")
    refused(page, r"notes\.txt cannot be classified: this is not a picture that the browser can read")
    (tmp_path / "cut.png").write_bytes((report.folder / "examples/01.png").read_bytes()[:60])
    page.choose_file("#file", tmp_path / "cut.png")
    page.wait("document.getElementById('status').textContent.startsWith('cut.png cannot')")
    refused(page, "not a picture that the browser can read")
    page.run(
        "const data = new DataTransfer(); data.items.add(new File([new Uint8Array(50e6 + 1)], 'huge.png'));"
        "document.body.dispatchEvent(new DragEvent('drop', {dataTransfer: data, bubbles: true}))"
    )
    page.wait("document.getElementById('status').textContent.startsWith('huge.png cannot')")
    refused(page, "it has 50 MB, and 50 MB is the most")
    page.run(
        "const data = new DataTransfer(); data.setData('text/plain', 'hello');"
        "document.body.dispatchEvent(new ClipboardEvent('paste', {clipboardData: data, bubbles: true}))"
    )
    refused(page, "What was pasted is not a picture")
    # and it still works
    page.run("document.querySelector('#examples button').click()")
    settled(page, f"Example 1 (labelled {CLASSES[0]})")


def test_the_keyboard_is_enough(page: Browser) -> None:
    focused = "return document.activeElement.id || document.activeElement.firstElementChild.alt"
    outline = "return getComputedStyle(document.activeElement.closest('label, button')).outlineStyle"
    page.press(TAB)
    assert page.run(focused) == "file"
    assert page.run(outline) == "solid"
    for number, key in ((1, ENTER), (2, SPACE)):
        page.press(TAB)
        name = f"Example {number} (labelled {CLASSES[number - 1]})"
        assert page.run(focused) == name
        assert page.run(outline) == "solid"
        page.press(key)
        settled(page, name)
    assert page.run("return document.getElementById('status').getAttribute('role')") == "status"


def test_only_the_newest_picture_is_shown(page: Browser) -> None:
    page.run("document.querySelectorAll('#examples button').forEach((button) => button.click())")
    settled(page, f"Example 12 (labelled {CLASSES[1]})")
    assert page.run("return document.querySelectorAll('[aria-pressed=true]').length") == 1


def test_a_phone(page: Browser) -> None:
    page.resize(360)
    page.run("document.querySelectorAll('#examples button')[2].click()")
    settled(page, f"Example 3 (labelled {CLASSES[2]})")
    assert page.run("return innerWidth") == 360
    assert page.run("return document.documentElement.scrollWidth") == 360


def test_nothing_comes_from_elsewhere(chromium: Browser, address: str) -> None:
    chromium.requests()
    chromium.open(address)
    chromium.wait("document.getElementById('status').textContent === 'Ready.'")
    chromium.run("document.querySelector('#examples button').click()")
    settled(chromium, f"Example 1 (labelled {CLASSES[0]})")
    asked = chromium.requests()
    assert f"{address}model.onnx" in asked
    assert [url for url in asked if not url.startswith((address, "data:", "chrome:"))] == []
    blocked = "return fetch('http://127.0.0.1:1/').then(() => 'sent', (error) => error.message)"
    assert chromium.run(blocked) == "Failed to fetch"


def test_a_network_that_cannot_be_loaded(chromium: Browser, report: WebReport, tmp_path: Path) -> None:
    folder = tmp_path / "page"
    shutil.copytree(report.folder, folder)
    (folder / "model.onnx").write_bytes(b"no network")
    with serving(folder) as address:
        chromium.open(address)
        refused(chromium, r"^The network cannot be loaded\. .*protobuf")
        chromium.run("document.querySelector('#examples button').click()")
        chromium.wait("document.querySelector('main').ariaBusy === 'false'")
        refused(chromium, r"^The network cannot be loaded")
        (folder / "model.onnx").unlink()
        chromium.open(address)
        refused(chromium, r"^The network cannot be loaded\. model\.onnx: the server answered 404\.")
