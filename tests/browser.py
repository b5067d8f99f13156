"""Chromium without a window, driven by its DevTools protocol."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import websocket
from processes import wait_until

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
)
KEYS = {"Tab": 9, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}
LOUD = ("Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled")


def program() -> str:
    """Chromium's path; skips where there is none, fails if AMPBRIDGE_REQUIRE_BROWSER is 1."""
    for name in PROGRAMS:
        if path := shutil.which(name):
            return path
    what = f"a browser is not installed: none of {', '.join(PROGRAMS)} is on the PATH"
    if os.environ.get("AMPBRIDGE_REQUIRE_BROWSER") == "1":
        pytest.fail(f"AMPBRIDGE_REQUIRE_BROWSER is 1, and {what}")
    pytest.skip(what)


class Browser:
    """One page of one browser process.

    Attributes:
        complaints: what the page logged: errors, warnings, exceptions.
        requests: the addresses that it asked for.
    """

    def __init__(self, profile: Path) -> None:
        root = ["--no-sandbox"] if os.geteuid() == 0 else []
        command = [program(), *FLAGS, *root, f"--user-data-dir={profile}", "about:blank"]
        self._process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self._number = 0
        self._socket = websocket.create_connection(self._address(profile), suppress_origin=True)
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def _address(self, profile: Path) -> str:
        port_file = profile / "DevToolsActivePort"
        wait_until(lambda: port_file.exists() and port_file.read_text().count("\n") == 1)
        port = port_file.read_text().splitlines()[0]
        import urllib.request

        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list") as answer:
            pages = [page for page in json.load(answer) if page["type"] == "page"]
        return pages[0]["webSocketDebuggerUrl"]

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """A command of the protocol, and its result."""
        self._number += 1
        self._socket.send(json.dumps({"id": self._number, "method": method, "params": parameters}))
        while True:
            answer = json.loads(self._socket.recv())
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]
            self._note(answer)

    def _note(self, event: dict[str, Any]) -> None:
        if event["method"] in LOUD:
            self.complaints.append(json.dumps(event["params"]))
        if event["method"] == "Network.requestWillBeSent":
            self.requests.append(event["params"]["request"]["url"])

    def open(self, address: str, width: int, theme: str, media: str = "screen") -> None:
        """Show ``address`` in a window ``width`` pixels wide, in the "light" or "dark" theme."""
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=900,
            deviceScaleFactor=1,
            mobile=width < 500,
        )
        scheme = [{"name": "prefers-color-scheme", "value": theme}]
        self.send("Emulation.setEmulatedMedia", media=media, features=scheme)
        self.complaints.clear()
        self.requests.clear()
        self.send("Page.navigate", url=address)
        wait_until(lambda: self.ask("document.readyState") == "complete")

    def ask(self, expression: str) -> Any:
        """The value of an expression in JavaScript, as plain data."""
        answer = self.send("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def press(self, key: str) -> None:
        """A key, down and up."""
        for kind in ("keyDown", "keyUp"):
            self.send(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                code=key,
                windowsVirtualKeyCode=KEYS[key],
            )

    def picture(self, path: Path) -> None:
        """The whole page as a PNG."""
        width, height = self.ask("[innerWidth, document.documentElement.scrollHeight]")
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        data = self.send("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)["data"]
        path.write_bytes(base64.b64decode(data))

    def close(self) -> None:
        self._socket.close()
        self._process.terminate()
        self._process.wait()
