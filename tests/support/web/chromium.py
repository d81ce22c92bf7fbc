"""A headless Chromium that a test drives as a person does: with the mouse and the keyboard, and by looking.

It speaks the DevTools protocol over two pipes (messages of JSON, each ended by a zero byte), so nothing listens.
"""

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, Final

PATIENCE_S: Final = 30.0
_LOOK_S: Final = 0.05
_NAMES: Final = ("chromium", "chromium-browser", "google-chrome")
_QUIET: Final = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions",
    "--force-prefers-reduced-motion", "--remote-debugging-pipe",
)  # fmt: skip
_PLACE: Final = """(async () => {
    const e = document.querySelector(SELECTOR);
    if (e === null) return null;
    e.scrollIntoView({block: 'center'});
    const place = () => { const r = e.getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2]; };
    const before = place();
    await new Promise(drawn => setTimeout(drawn, 50));
    const [x, y] = place();
    const seen = document.elementFromPoint(x, y);
    return x === before[0] && y === before[1] && e.contains(seen) ? [x, y] : null;
})()"""
_REWIRE: Final = 'from=$1 to=$2; shift 2; exec "$@" 3<&"$from" 4>&"$to"'
"""The browser reads commands from descriptor 3 and answers on 4."""


def chromium_program() -> str | None:
    """Where a Chromium is installed; None where there is none."""
    return next((found for name in _NAMES if (found := shutil.which(name))), None)


class BrowserError(Exception):
    """The browser refused a command, or what was waited for did not come."""


class Browser:
    """One page of one browser. `asked` are the URLs it requested, `errors` what its console says is wrong."""

    def __init__(self, process: "subprocess.Popen[bytes]", to: int, back: int) -> None:
        self.asked: list[str] = []
        self.errors: list[str] = []
        self._process = process
        self._to = to
        self._back = back
        self._ids = count(1)
        self._unread = bytearray()
        self._session: str | None = None
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self._call(f"{domain}.enable")

    def go(self, url: str) -> None:
        """Open an address; the page may still be loading."""
        failed = self._call("Page.navigate", url=url).get("errorText")
        if failed:
            raise BrowserError(f"{url}: {failed}")

    def value(self, script: str) -> Any:
        """What a JavaScript expression is now."""
        found = self._call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise BrowserError(f"{script}: {found['exceptionDetails']}")
        return found["result"].get("value")

    def until(self, script: str, within_s: float = PATIENCE_S) -> Any:
        """Wait until an expression is true; its value."""
        deadline = time.monotonic() + within_s
        while not (found := self.value(script)):
            if time.monotonic() > deadline:
                text = self.value("document.body.innerText")
                raise BrowserError(f"waited {within_s:g} s for {script}; the page says:\n{str(text)[-2000:]}")
            time.sleep(_LOOK_S)
        return found

    def until_asked(self, ending: str, within_s: float = PATIENCE_S) -> None:
        """Wait until the page requested a URL whose path ends so: a document is complete before its late images."""
        deadline = time.monotonic() + within_s
        while not any(url.partition("#")[0].endswith(ending) for url in self.asked):
            if time.monotonic() > deadline:
                raise BrowserError(f"waited {within_s:g} s for a request of {ending}; requested: {self.asked}")
            time.sleep(_LOOK_S)
            self.value("0")  # reads the events that came

    def click(self, selector: str) -> None:
        """Click what a selector finds, in its middle, as soon as it is seen there and stays."""
        x, y = self.until(_PLACE.replace("SELECTOR", json.dumps(selector)))
        where = {"x": x, "y": y, "button": "left", "clickCount": 1}
        for kind in ("mousePressed", "mouseReleased"):
            self._call("Input.dispatchMouseEvent", type=kind, **where)

    def write(self, selector: str, text: str) -> None:
        """Replace what a field holds, as by the keyboard."""
        chosen = json.dumps(selector)
        self.until(f"document.querySelector({chosen}) !== null")
        self.value(f"(() => {{ const e = document.querySelector({chosen}); e.focus(); e.select(); }})()")
        self._call("Input.insertText", text=text)

    def text(self, selector: str) -> str:
        """The text that a selector's first find shows."""
        return str(self.until(f"document.querySelector({json.dumps(selector)})?.innerText"))

    def picture(self, path: Path) -> None:
        """What is seen, as a PNG."""
        path.write_bytes(base64.b64decode(self._call("Page.captureScreenshot", format="png")["data"]))

    def _call(self, method: str, **params: Any) -> dict[str, Any]:
        number = next(self._ids)
        message: dict[str, Any] = {"id": number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + PATIENCE_S
        while True:
            answer = self._message(deadline)
            if answer.get("id") == number:
                if "error" in answer:
                    raise BrowserError(f"{method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result
            self._note(answer)

    def _note(self, event: dict[str, Any]) -> None:
        params = event.get("params", {})
        match event.get("method"):
            case "Network.requestWillBeSent":
                self.asked.append(params["request"]["url"])
            case "Runtime.exceptionThrown":
                self.errors.append(json.dumps(params["exceptionDetails"]))
            case "Log.entryAdded" if params["entry"]["level"] == "error":
                self.errors.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
            case _:
                pass

    def _message(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._unread:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._back], [], [], left)[0]:
                raise BrowserError(f"the browser (process {self._process.pid}) does not answer")
            data = os.read(self._back, 1 << 20)
            if not data:
                raise BrowserError(f"the browser ended with status {self._process.wait(5)}")
            self._unread += data
        line, _, rest = self._unread.partition(b"\0")
        self._unread = bytearray(rest)
        message: dict[str, Any] = json.loads(line)
        return message


@contextmanager
def browser(program: str, profile: Path, *, width: int = 1280, height: int = 1400) -> Iterator[Browser]:
    """A browser for the block, with a profile of its own; it draws a window of this size."""
    theirs_from, ours_to = os.pipe()
    ours_back, theirs_to = os.pipe()
    theirs = [fcntl.fcntl(each, fcntl.F_DUPFD, 10) for each in (theirs_from, theirs_to)]
    for each in (theirs_from, theirs_to):
        os.close(each)
    with (profile / "chromium.log").open("wb") as log:
        process = subprocess.Popen(
            ["bash", "-c", _REWIRE, "bash", *map(str, theirs), program, *_QUIET,
             f"--user-data-dir={profile / 'profile'}", f"--window-size={width},{height}", "about:blank"],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=theirs, start_new_session=True,
        )  # fmt: skip
    for each in theirs:
        os.close(each)
    try:
        yield Browser(process, ours_to, ours_back)
    finally:
        os.close(ours_to)  # which it takes for the end
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait()
        os.close(ours_back)
