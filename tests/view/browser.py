"""A headless Chromium, driven over a pair of pipes by its DevTools protocol; nothing but the standard library."""

import base64
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-dev-shm-usage",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions",
    "--disable-default-apps", "--hide-scrollbars", "--force-color-profile=srgb", "--remote-debugging-pipe",
)  # fmt: skip


def chromium() -> str | None:
    """The browser, where there is one."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
    return os.environ.get("ATTNX_CHROMIUM") or next((found for name in names if (found := shutil.which(name))), None)


class Browser:
    """One browser with one page at a time."""

    def __init__(self, program: str, profile: Path) -> None:
        to_read, self._write = os.pipe()
        self._read, to_write = os.pipe()
        # The protocol wants to be spoken on descriptors 3 and 4; bash puts them there.
        moved = f'exec "$@" 3<&{to_read} 4>&{to_write}'
        self._process = subprocess.Popen(
            ["bash", "-c", moved, "bash", program, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(to_read, to_write),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(to_write)
        self._count, self._rest, self._session = 0, b"", ""
        self.errors: list[str] = []
        self.requests: list[str] = []

    def close(self) -> None:
        try:
            self.send("Browser.close", whole=True)
        except (OSError, AssertionError):
            pass
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._write)
        os.close(self._read)

    def _next(self, until: float) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._read], [], [], max(0.0, until - time.monotonic()))
            assert ready, "the browser does not answer"
            part = os.read(self._read, 1 << 16)
            assert part, "the browser has gone"
            self._rest += part
        line, _, self._rest = self._rest.partition(b"\0")
        found: dict[str, Any] = json.loads(line)
        if found.get("method") == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(found["params"]["exceptionDetails"])[:600])
        if found.get("method") == "Log.entryAdded" and found["params"]["entry"]["level"] == "error":
            self.errors.append(found["params"]["entry"]["text"])
        if found.get("method") == "Network.requestWillBeSent":
            self.requests.append(found["params"]["request"]["url"])
        return found

    def send(self, method: str, whole: bool = False, seconds: float = 60, **params: Any) -> Any:
        """Call a method of the protocol, of the page or (whole) of the browser."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": params}
        if self._session and not whole:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + seconds
        while True:
            found = self._next(until)
            if found.get("id") == self._count:
                assert "error" not in found, found["error"]
                return found["result"]

    def open(
        self,
        url: str,
        *,
        width: int = 1280,
        height: int = 900,
        dark: bool = False,
        before: str = "",
        paper: bool = False,
        ready: bool = True,
    ) -> None:
        """Open a page and wait until it says that it is ready (or has loaded). `before` runs before its own program."""
        target = self.send("Target.createTarget", whole=True, url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", whole=True, targetId=target, flatten=True)["sessionId"]
        self.errors, self.requests = [], []
        for domain in ("Runtime", "Page", "Network", "Log"):
            self.send(f"{domain}.enable")
        self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", media="print" if paper else "", features=[scheme])
        if before:
            self.send("Page.addScriptToEvaluateOnNewDocument", source=before)
        self.send("Page.navigate", url=url)
        said = "document.documentElement?.dataset.ready === 'yes'"
        self.wait(said if ready else f"location.href === {json.dumps(url)} && document.readyState === 'complete'")

    def wait(self, said: str, seconds: float = 60) -> None:
        """Wait until an expression holds."""
        until = time.monotonic() + seconds
        while not self.run(said):
            assert time.monotonic() < until, f"{said} does not come true; {self.errors}"
            time.sleep(0.05)

    def run(self, program: str) -> Any:
        """The value of an expression, promises awaited."""
        found = self.send("Runtime.evaluate", expression=program, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def press(self, key: str, code: int = 0, text: str = "") -> None:
        """Press a key where the focus is."""
        told: dict[str, Any] = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        self.send("Input.dispatchKeyEvent", type="keyDown", **told, **({"text": text} if text else {}))
        self.send("Input.dispatchKeyEvent", type="keyUp", **told)

    def middle(self, selector: str) -> tuple[float, float]:
        """Where an element's middle is on the screen, after it was scrolled into view."""
        box = self.run(
            f"(() => {{ const one = document.querySelector({json.dumps(selector)});"
            " one.scrollIntoView({block: 'nearest'});"
            " const box = one.getBoundingClientRect(); return [box.x + box.width / 2, box.y + box.height / 2]; })()"
        )
        return box[0], box[1]

    def hover(self, selector: str) -> None:
        x, y = self.middle(selector)
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def click(self, selector: str) -> None:
        x, y = self.middle(selector)
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def picture(self, path: Path, whole: bool = True) -> None:
        """A screenshot, of the whole page or of what is on the screen."""
        shot = self.send("Page.captureScreenshot", captureBeyondViewport=whole, format="png")
        path.write_bytes(base64.b64decode(shot["data"]))
