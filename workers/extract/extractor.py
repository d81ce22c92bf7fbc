"""The worker's side of extraction: hands pages to the process that takes them apart, one at a time."""

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec
import structlog

from shared.domain.item_rules import ItemLimits, ItemRule
from shared.supervise import dying_with
from workers.extract.rules import Extraction, Page

log = structlog.get_logger(__name__)

_ROOT: Final = Path(__file__).resolve().parents[2]
_LENGTH: Final = 4
_OUT_OF_MEMORY: Final = 77
_TRIES: Final = 3
_PATIENCE: Final = 30
"""So many times its processor time may a page take by the clock, on a machine that is busy; then it is asked anew."""

_extraction: Final = msgspec.msgpack.Decoder(Extraction)


class Unreadable(Exception):
    """The page takes more than it may."""


class _Ended(Exception):
    """The process ended, by its exit status."""

    def __init__(self, status: int) -> None:
        super().__init__(f"exit status {status}")
        self.status = status


class Extractor:
    """Takes pages apart. `cpu_s` and `memory_bytes`: what one page may take; the process has 1 thread.

    The process is started when it is first needed, again whenever it has ended, and dies with the worker.
    """

    def __init__(self, *, cpu_s: float = 2.0, memory_bytes: int = 1 << 30) -> None:
        self._cpu_s = cpu_s
        self._memory = memory_bytes
        self._process: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()

    def __repr__(self) -> str:
        return f"<Extractor pid={self.pid}>"

    @property
    def pid(self) -> int | None:
        """The process, while it runs."""
        return None if self._process is None or self._process.returncode is not None else self._process.pid

    async def extract(self, page: Page, rules: Sequence[ItemRule], limits: ItemLimits) -> Extraction:
        """The page's items; none, and one `unreadable`, where it takes more than it may.

        A process that ended for another reason (killed, say) is asked anew; a page at which it ends again and again is
        unreadable, too. Cancelled, the process is ended: its answer would be taken for the next page's.
        """
        request = msgspec.msgpack.encode((page, msgspec.json.encode(rules), limits))
        async with self._turn:
            for left in reversed(range(_TRIES)):
                try:
                    return await self._asked(len(request).to_bytes(_LENGTH) + request)
                except _Ended as ended:
                    its_fault = ended.status in (-signal.SIGPROF, _OUT_OF_MEMORY)
                    log.warning(
                        "extract.ended", page=page.base, status=ended.status, again=bool(left) and not its_fault
                    )
                    if its_fault:
                        break
        return Extraction(refused={"unreadable": 1})

    async def close(self) -> None:
        """End the process."""
        async with self._turn:
            await self._end()

    async def _asked(self, request: bytes) -> Extraction:
        process = self._process or await self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            async with asyncio.timeout(max(_PATIENCE * self._cpu_s, _PATIENCE)):
                process.stdin.write(request)
                await process.stdin.drain()
                size = int.from_bytes(await process.stdout.readexactly(_LENGTH))
                return _extraction.decode(await process.stdout.readexactly(size))
        except (asyncio.IncompleteReadError, ConnectionError, TimeoutError, msgspec.MsgspecError):
            raise _Ended(await self._end()) from None
        except BaseException:
            with suppress(ProcessLookupError):
                process.kill()
            await asyncio.shield(self._end())
            raise

    async def _start(self) -> asyncio.subprocess.Process:
        command = (sys.executable, "-m", "workers.extract.process", str(self._cpu_s), str(self._memory))
        self._process = await asyncio.create_subprocess_exec(
            *dying_with(os.getpid()),
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            cwd=_ROOT,
            env={"PATH": os.defpath, "PYTHONDONTWRITEBYTECODE": "1"},  # none of the worker's secrets
        )
        return self._process

    async def _end(self) -> int:
        """Its exit status; what has not ended by itself is killed."""
        process, self._process = self._process, None
        if process is None:
            return 0
        with suppress(TimeoutError):
            async with asyncio.timeout(0.2):
                return await process.wait()
        with suppress(ProcessLookupError):
            process.kill()
        return await process.wait()
