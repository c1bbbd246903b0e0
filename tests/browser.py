"""A headless Chromium to open pages in, spoken to over a pipe: it takes no package and no port."""

import base64
import contextlib
import itertools
import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--disable-extensions"),
    *("--hide-scrollbars", "--force-color-profile=srgb", "--remote-debugging-pipe"),
)
# It reads its orders from descriptor 3 and answers on 4; both may be taken by something else here.
STARTER = (
    *(sys.executable, "-c"),
    "import fcntl, os, sys\n"
    "ends = [fcntl.fcntl(int(end), fcntl.F_DUPFD, 10) for end in sys.argv[1:3]]\n"
    "os.dup2(ends[0], 3); os.dup2(ends[1], 4); os.execvp(sys.argv[3], sys.argv[3:])",
)


def find() -> str | None:
    """Return the path of a Chromium; None where there is none."""
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """A running Chromium, with one page."""

    def __init__(self, program: str, profile: Path) -> None:
        to_read, self._write = os.pipe()
        self._read, to_write = os.pipe()
        self._process = subprocess.Popen(
            [
                *STARTER,
                str(to_read),
                str(to_write),
                program,
                *FLAGS,
                f"--user-data-dir={profile}",
                "about:blank",
            ],
            pass_fds=(to_read, to_write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(to_write)
        self._numbers = itertools.count(1)
        self._buffer = b""
        self._events: list[dict] = []
        self._session = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network", "Audits"):
            self.call(f"{domain}.enable")

    def close(self) -> None:
        self._session = None
        with contextlib.suppress(EOFError, TimeoutError):
            self.call("Browser.close")
        self._process.wait(20)
        os.close(self._write)
        os.close(self._read)

    def call(self, method, **parameters):
        """Send an order and return the answer; what is told meanwhile is kept."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next(60)
            if answer.get("id") == number:
                assert "error" not in answer, answer["error"]
                return answer["result"]
            self._events.append(answer)

    def _next(self, seconds):
        end = time.monotonic() + seconds
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(end - time.monotonic(), 0))
            if not ready:
                raise TimeoutError("Chromium does not answer")
            got = os.read(self._read, 1 << 20)
            if not got:
                raise EOFError("Chromium has ended")
            self._buffer += got
        line, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(line)

    def open(self, file, *, width=1440, height=900, dark=False, script=True, media="screen") -> None:
        """Open a file and wait until it has loaded; what was told before is forgotten."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media=media, features=[scheme])
        self.call("Emulation.setScriptExecutionDisabled", value=not script)
        self._events.clear()
        self.call("Page.navigate", url=Path(file).resolve().as_uri())
        while not self.told("Page.loadEventFired"):
            self._events.append(self._next(60))

    def told(self, *methods):
        """Return the parameters of every event of these kinds since the page was opened."""
        return [event["params"] for event in self._events if event.get("method") in methods]

    def complaints(self):
        """Return what went to the console, was thrown, or broke the policy."""
        self.run("0")
        issues = [told["issue"] for told in self.told("Audits.issueAdded")]
        # That an image waits until it is scrolled to is meant.
        issues = [str(issue)[:400] for issue in issues if issue["code"] != "LazyLoadImageIssue"]
        said = self.told("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
        return issues + [str(one)[:400] for one in said]

    def requests(self):
        """Return every address that was asked for, beside the page itself and what it holds."""
        self.run("0")
        urls = [told["request"]["url"] for told in self.told("Network.requestWillBeSent")]
        return [url for url in urls[1:] if not url.startswith(("data:", "blob:"))]

    def run(self, expression):
        """Return what an expression in the page gives, once it is settled."""
        result = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def pdf(self) -> bytes:
        return base64.b64decode(self.call("Page.printToPDF")["data"])


@contextlib.contextmanager
def opened(profile: Path):
    browser = Browser(find(), profile)
    try:
        yield browser
    finally:
        browser.close()
