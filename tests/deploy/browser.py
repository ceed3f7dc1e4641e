"""A headless Chromium, driven by chromedriver's WebDriver protocol; no more of it than the tests need."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

FLAGS = (
    "--headless=new",
    "--no-sandbox",  # root, as in a container, has no other way
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1100,1000",
)
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # the protocol's key for a reference to an element
TAB, ENTER, SPACE = "\ue004", "\ue007", " "
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def missing() -> str | None:
    """Why no browser can be started here."""
    lacking = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    return f"{' and '.join(lacking)} not installed" if lacking else None


class Browser:
    """One page in one window; `commands` is the address of its WebDriver session."""

    def __init__(self, commands: str) -> None:
        self.commands = commands

    def _do(self, method: str, path: str, body: Any = None) -> Any:
        return _request(method, f"{self.commands}/{path}", body)

    def open(self, address: str) -> None:
        self._do("POST", "url", {"url": address})

    def run(self, script: str, *arguments: Any) -> Any:
        """The value that a piece of JavaScript returns, awaited if it is a promise."""
        return self._do("POST", "execute/sync", {"script": script, "args": list(arguments)})

    def wait(self, condition: str, seconds: float = 60) -> Any:
        """Until a JavaScript expression is true."""
        end = time.monotonic() + seconds
        while not (value := self.run(f"return {condition}")):
            if time.monotonic() > end:
                shown = self.run("return document.body.innerText")
                raise AssertionError(f"not within {seconds} s: {condition}; the page says:\n{shown}")
            time.sleep(0.05)
        return value

    def press(self, *keys: str) -> None:
        actions = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self._do("POST", "actions", {"actions": [{"type": "key", "id": "keyboard", "actions": actions}]})

    def choose_file(self, selector: str, path: Path) -> None:
        found = self._do("POST", "element", {"using": "css selector", "value": selector})
        self._do("POST", f"element/{found[ELEMENT]}/value", {"text": str(path)})

    def devtools(self, command: str, **parameters: Any) -> Any:
        return self._do("POST", "goog/cdp/execute", {"cmd": command, "params": parameters})

    def resize(self, width: int, height: int = 900) -> None:
        """As on a phone of this width."""
        self.devtools(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=True
        )

    def requests(self) -> list[str]:
        """The addresses asked for since the last call."""
        entries = self._do("POST", "se/log", {"type": "performance"})
        events = [json.loads(entry["message"])["message"] for entry in entries]
        return [
            event["params"]["request"]["url"]
            for event in events
            if event["method"] == "Network.requestWillBeSent"
        ]

    def screenshot(self, path: Path) -> None:
        """The whole page, also what has to be scrolled to."""
        shot = self.devtools("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))


def _request(method: str, address: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(address, data, {"Content-Type": "application/json"}, method=method)
    try:
        with _DIRECT.open(request, timeout=90) as response:
            return json.load(response)["value"]
    except urllib.error.HTTPError as error:
        raise AssertionError(json.load(error)["value"]["message"]) from None


@contextmanager
def browser() -> Iterator[Browser]:
    """A new browser with an empty profile, closed at the end."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        driver = subprocess.Popen(
            ["chromedriver", "--port=0", f"--log-path={profile}/log"], stdout=subprocess.PIPE, text=True
        )
        try:
            base = f"http://127.0.0.1:{_port(driver)}/session"
            options = {
                "binary": shutil.which("chromium"),
                "args": [*FLAGS, f"--user-data-dir={profile}/data"],
            }
            wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"performance": "ALL"}}
            session = _request("POST", base, {"capabilities": {"alwaysMatch": wanted}})
            try:
                yield Browser(f"{base}/{session['sessionId']}")
            finally:
                _request("DELETE", f"{base}/{session['sessionId']}")
        finally:
            driver.terminate()
            driver.wait(10)


def _port(driver: subprocess.Popen[str]) -> int:
    assert driver.stdout is not None
    for line in driver.stdout:
        if "successfully on port" in line:
            return int(line.rsplit("port", 1)[1].strip(" .\n"))
    raise AssertionError("chromedriver did not start")


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """The address under which a plain static server has `folder`."""
    handler: Callable[..., Any] = partial(_Quiet, directory=str(folder))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *arguments: Any) -> None:
        pass
