"""`orb` that measures its own pauses: `python -m tests.support.pause_meter master` is `orb master` with a meter.

The meter takes the CPU time of the loop's thread, which other processes do not lengthen. It measures each garbage
collection, and from a call to `call_soon` to its callback every 50 ms. At the end of the loop it writes both, in
milliseconds, to a file of the folder PAUSES_DIR. With PAUSES_PLAIN=1 Python decides on full collections by itself.
"""

import asyncio
import gc
import json
import os
import pkgutil
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Final

import shared.runtime.garbage
from shared.runtime.garbage import collecting_when_idle

ENTRY: Final = "tests.support.pause_meter"
FOLDER: Final = "PAUSES_DIR"
PLAIN: Final = "PAUSES_PLAIN"
_EVERY_S: Final = 0.05


class PauseMeter:
    """Collects the pauses of a running loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.collections: dict[int, list[float]] = {0: [], 1: [], 2: []}
        self.lags: list[float] = []
        self._loop = loop
        self._begun = 0.0
        self._handle = loop.call_later(_EVERY_S, self._sample)

    def collected(self, phase: str, info: Mapping[str, Any]) -> None:
        """Take a call of `gc.callbacks`."""
        if phase == "start":
            self._begun = time.thread_time()
        else:
            self.collections[info["generation"]].append((time.thread_time() - self._begun) * 1000)

    def stop(self) -> None:
        self._handle.cancel()

    def _sample(self) -> None:
        self._loop.call_soon(self._arrived, time.thread_time())

    def _arrived(self, asked: float) -> None:
        self.lags.append((time.thread_time() - asked) * 1000)
        self._handle = self._loop.call_later(_EVERY_S, self._sample)


@contextmanager
def _metered(every_s: float = 1.0) -> Iterator[None]:
    meter = PauseMeter(asyncio.get_running_loop())
    gc.callbacks.append(meter.collected)
    try:
        with nullcontext() if os.environ.get(PLAIN) else collecting_when_idle(every_s):
            yield
    finally:
        gc.callbacks.remove(meter.collected)
        meter.stop()
        path = Path(os.environ[FOLDER], f"{sys.argv[1]}-{os.getpid()}.json")
        path.write_text(json.dumps({"collections": meter.collections, "lags": meter.lags}))


def main() -> int:
    """Run `orb` with the meter on each loop of a member."""
    setattr(shared.runtime.garbage, "collecting_when_idle", _metered)  # noqa: B010  members import it after this
    from cli.main import main as orb

    return orb()


if __name__ == "__main__":
    # Run as __main__, this module would be a second copy of itself.
    sys.exit(pkgutil.resolve_name(ENTRY).main())
