"""The worker's side of extraction: sends pages to the extraction process, one after another."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import structlog

from shared.domain.crawl.item_rules import ItemLimits, ItemRule
from shared.runtime.supervise import dying_with, process_end
from workers.extract.rules import Extraction, ExtractionInput

log = structlog.get_logger(__name__)

_ROOT: Final = Path(__file__).resolve().parents[2]
_LENGTH: Final = 4
_OUT_OF_MEMORY: Final = 77
_TRIES: Final = 3
_PATIENCE: Final = 30
"""The limit of wall-clock time for a page is `_PATIENCE` times its limit of CPU time, and at least `_PATIENCE` seconds.

After that the process is ended, and the page is tried again.
"""

_extraction: Final = msgspec.msgpack.Decoder(Extraction)
_text: Final = msgspec.msgpack.Decoder(str)


class _Ended(Exception):
    """Raised if the extraction process did not answer a request, and has ended. `status`: its exit status."""

    def __init__(self, status: int) -> None:
        super().__init__(f"exit status {status}")
        self.status = status


@dataclass(slots=True, eq=False)
class _Child:
    """A running extraction process, with the streams of the socket that is its standard input and output.

    `greeted`: True once the first frame of the process was read, which it sends at its start.
    """

    process: "subprocess.Popen[bytes]"
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    greeted: bool = False

    async def frame(self) -> bytes:
        size = int.from_bytes(await self.reader.readexactly(_LENGTH))
        return await self.reader.readexactly(size)


class Extractor:
    """Extracts items from pages in a separate process, one page after another.

    `cpu_s`: the limit of CPU time for each page. `memory_bytes`: the limit of the process's address space. The process
    is started when it is first needed, and again after it has ended. It ends with the worker. It inherits one socket
    and the standard error.
    """

    def __init__(self, *, cpu_s: float = 2.0, memory_bytes: int = 1 << 30) -> None:
        self._cpu_s = cpu_s
        self._memory = memory_bytes
        self._child: _Child | None = None
        self._unconfined_logged = False
        self._turn = asyncio.Lock()

    def __repr__(self) -> str:
        return f"<Extractor pid={self.pid}>"

    @property
    def pid(self) -> int | None:
        """The id of the extraction process, None if it is not running."""
        child = self._child
        return None if child is None or child.process.poll() is not None else child.process.pid

    async def extract(self, page: ExtractionInput, rules: Sequence[ItemRule], limits: ItemLimits) -> Extraction:
        """Return the items that `rules` find in the page. The extraction process does the work.

        In these cases the result has no items, and `refused` is {"unreadable": 1}:

        - The page exceeds the CPU time or the memory.
        - The process ends or hangs for another reason, such as a kill, in each of _TRIES attempts.

        A cancelled call ends the process.
        """
        request = msgspec.msgpack.encode((page, msgspec.json.encode(rules), limits))
        async with self._turn:
            for left in reversed(range(_TRIES)):
                try:
                    return await self._request(len(request).to_bytes(_LENGTH) + request)
                except _Ended as ended:
                    page_at_fault = ended.status in (-signal.SIGPROF, _OUT_OF_MEMORY)
                    log.warning(
                        "extractor.exited", url=page.base, status=ended.status, retried=bool(left) and not page_at_fault
                    )
                    if page_at_fault:
                        break
        return Extraction(refused={"unreadable": 1})

    async def close(self) -> None:
        """End the extraction process, after the page in progress. A later call of `extract` starts a new one."""
        async with self._turn:
            await self._end()

    async def _request(self, request: bytes) -> Extraction:
        child = self._child or await self._start()
        try:
            async with asyncio.timeout(max(_PATIENCE * self._cpu_s, _PATIENCE)):
                if not child.greeted:
                    self._greeted(child, _text.decode(await child.frame()))
                child.writer.write(request)
                await child.writer.drain()
                return _extraction.decode(await child.frame())
        except (asyncio.IncompleteReadError, ConnectionError, TimeoutError, msgspec.MsgspecError):
            raise _Ended(await self._end()) from None
        except BaseException:  # a late reply would be taken for the reply to the next page
            child.process.kill()
            await asyncio.shield(self._end())
            raise

    async def _start(self) -> _Child:
        command = (sys.executable, "-m", "workers.extract.process", str(self._cpu_s), str(self._memory))
        process, ours = _spawned(command)
        reader, writer = await asyncio.open_unix_connection(sock=ours)
        self._child = _Child(process, reader, writer)
        return self._child

    def _greeted(self, child: _Child, unconfined: str) -> None:
        child.greeted = True
        if unconfined and not self._unconfined_logged:
            self._unconfined_logged = True
            log.warning("extractor.unconfined", reason=unconfined)

    async def _end(self) -> int:
        """End the process, if it runs. Kill it if it does not end by itself. Return its exit status, 0 if none runs."""
        child, self._child = self._child, None
        if child is None:
            return 0
        child.writer.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(0.2):
                return await process_end(child.process)
        child.process.kill()
        return await process_end(child.process)


def _spawned(command: Sequence[str]) -> "tuple[subprocess.Popen[bytes], socket.socket]":
    """Start the process. Return it, and the worker's end of the socket that is its standard input and output.

    The process inherits no other open file than standard error. The call blocks the event loop for about a millisecond.
    """
    ours, theirs = socket.socketpair()
    with theirs:
        # The event loop's own function (uvloop) does not close other descriptors in the process.
        process = subprocess.Popen(
            [*dying_with(os.getpid()), *command],
            stdin=theirs.fileno(),
            stdout=theirs.fileno(),
            cwd=_ROOT,
            env={"PATH": os.defpath, "PYTHONDONTWRITEBYTECODE": "1"},  # none of the worker's secrets
            close_fds=True,
            start_new_session=True,
        )
    return process, ours
