"""docs/images/web.png, the page of `simnets export … --to web`: `python docs/make_screenshot.py`.

Needs Chromium with its driver, as the page's tests do, and CIFAR-10 under $SIMNETS_DATA.
"""

from __future__ import annotations

import io
import sys
import tempfile
from pathlib import Path

from PIL import Image

import simnets
from simnets.data import load_dataset
from simnets.deploy import export_web

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests" / "deploy"))
from browser import browser, serving  # noqa: E402


def main(picture: Path = HERE / "images" / "web.png") -> None:
    """Export the network in the box, open its page, choose the first example, and keep what is seen."""
    with tempfile.TemporaryDirectory() as folder:
        model = simnets.create_model("simnet2", weights="cifar10")
        export_web(model, Path(folder) / "page", examples=load_dataset("cifar10", "test"))
        with serving(Path(folder) / "page") as address, browser() as page:
            page.resize(960)
            page.open(address)
            page.wait("document.getElementById('status').textContent === 'Ready.'")
            page.run("document.querySelector('#examples button').click()")
            page.wait("document.getElementById('status').textContent.includes(': most')")
            page.wait("document.querySelector('main').ariaBusy === 'false'")
            page.screenshot(Path(folder) / "seen.png")
        shown = io.BytesIO((Path(folder) / "seen.png").read_bytes())
    Image.open(shown).convert("RGB").quantize(128).save(picture, optimize=True)


if __name__ == "__main__":
    main()
