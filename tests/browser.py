"""A headless Chromium driven through its DevTools pipe: no package and no port, so nothing but the page is loaded.

with Browser(tmp_path) as browser:
    browser.open("file:///page.html")
    browser.press("j")
    assert browser.run("document.title") == "..."
    assert browser.errors == [] and browser.requests == []
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
"""None where no Chromium is installed (Debian: apt-get install chromium)."""
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-pipe",
]
PATIENCE = 30.0
"""Seconds until an answer or a condition is given up."""
# The browser reads commands from descriptor 3 and answers on 4.
TRAMPOLINE = """
import fcntl, os, sys
ours = [fcntl.fcntl(int(number), fcntl.F_DUPFD, 10) for number in sys.argv[1:3]]
for given, wanted in zip(ours, (3, 4)):
    os.dup2(given, wanted)
os.execv(sys.argv[3], sys.argv[3:])
"""
KEYS = {"Escape": 27, "Enter": 13, "End": 35, "Home": 36, "ArrowUp": 38, "ArrowDown": 40, "PageDown": 34}
"""Keys without a character, with their codes."""


class Browser:
    """One page, with the errors it logged and the requests it made."""

    def __init__(self, folder: Path) -> None:
        """The profile is kept in `folder`."""
        assert CHROMIUM is not None
        (read, self._in), (self._out, write) = os.pipe(), os.pipe()
        command = [CHROMIUM, *FLAGS, f"--user-data-dir={folder / 'profile'}"]
        self._process = subprocess.Popen(
            [sys.executable, "-c", TRAMPOLINE, str(read), str(write), *command],
            pass_fds=(read, write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(read)
        os.close(write)
        self._buffer, self._count = b"", 0
        self._session: str | None = None
        self.errors: list[str] = []
        """Uncaught errors, console errors, and what the browser logged as an error."""
        self.requests: list[str] = []
        """Addresses that were asked for, without files and data in the page."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)  # its own session: with all of its children
        self._process.wait()
        os.close(self._in)
        os.close(self._out)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command of the DevTools protocol and its result."""
        self._count += 1
        message: dict[str, Any] = {"id": self._count, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._in, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next_message()
            if answer.get("id") == self._count:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return dict(answer["result"])
            self._note(answer)

    def _next_message(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._out], [], [], PATIENCE)
            block = os.read(self._out, 1 << 20) if ready else b""
            assert block, "the browser does not answer"
            self._buffer += block
        message, _, self._buffer = self._buffer.partition(b"\0")
        return dict(json.loads(message))

    def _note(self, event: dict[str, Any]) -> None:
        method, given = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.errors.append(str(given["exceptionDetails"].get("exception", {}).get("description", given)))
        elif method == "Runtime.consoleAPICalled" and given["type"] in ("error", "assert", "warning"):
            self.errors.append(str(given["args"]))
        elif method == "Log.entryAdded" and given["entry"]["level"] in ("error", "warning"):
            self.errors.append(str(given["entry"]["text"]))
        elif method == "Network.requestWillBeSent" and not given["request"]["url"].startswith(("file:", "data:")):
            self.requests.append(given["request"]["url"])

    def open(self, address: str) -> None:
        """Load a page and wait until it says that it is ready (data-ready on its root)."""
        self.call("Page.navigate", url=address)
        self.wait("document.documentElement?.dataset.ready")

    def run(self, script: str) -> Any:
        """The value of an expression of JavaScript; a promise is awaited."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, f"{script}: {answer['exceptionDetails']}"
        return answer["result"].get("value")

    def wait(self, condition: str) -> None:
        """Wait until an expression is true."""
        self.until(lambda: bool(self.run(f"!!({condition})")), condition)

    def until(self, done: Callable[[], bool], what: str) -> None:
        """Wait until a function returns True."""
        end = time.monotonic() + PATIENCE
        while not done():
            assert time.monotonic() < end, f"not within {PATIENCE} s: {what}"
            time.sleep(0.02)

    def press(self, *keys: str) -> None:
        """Keys one after the other: characters, or names such as Escape."""
        for key in keys:
            code = KEYS.get(key)
            text = {} if code else {"text": key}
            named = {"key": key, "windowsVirtualKeyCode": code or ord(key.upper()), **text}
            self.call("Input.dispatchKeyEvent", type="keyDown", **named)
            self.call("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code or ord(key.upper()))

    def show_as(self, width: int, height: int, scheme: str) -> None:
        """Another size of the window, and the reader's preference: light or dark."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def photograph(self, path: Path, whole: bool = False) -> None:
        """A screenshot of the window, or of the whole page."""
        data = self.call("Page.captureScreenshot", captureBeyondViewport=whole)["data"]
        path.write_bytes(base64.b64decode(data))
