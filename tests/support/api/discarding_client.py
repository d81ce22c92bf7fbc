"""A caller of the REST API who keeps nothing of what he gets, however much it is."""

import asyncio
import ctypes
import gc
import sys
from dataclasses import dataclass, fields
from typing import Any

import pyarrow

from shared.domain.ops.access import Role
from tests.support.api.rest_api import Api


class _Allocator(ctypes.Structure):
    """The counts of glibc's `mallinfo2`."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in [
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        ]
    )


_mallinfo2 = ctypes.CDLL(None).mallinfo2
_mallinfo2.restype = _Allocator


@dataclass(slots=True)
class Held:
    """The most that the process held when a part of an answer was sent.

    - `blocks`: the objects of at most 512 bytes (`sys.getallocatedblocks`).
    - `heap`: the bytes of larger objects and of buffers.
    - `arrow`: the bytes of Arrow's buffers.

    To trace each allocation instead takes three times as long as the export.
    """

    blocks: int = 0
    heap: int = 0
    arrow: int = 0

    def note(self) -> None:
        allocator = _mallinfo2()
        now = Held(
            sys.getallocatedblocks(), allocator.uordblks + allocator.hblkhd, int(pyarrow.total_allocated_bytes())
        )
        for each in fields(self):
            setattr(self, each.name, max(getattr(self, each.name), getattr(now, each.name)))


async def sent(us: Api, path: str) -> tuple[int, Held]:
    """How many bytes the application sends, none of which is kept, and the most that was held meanwhile."""
    size, held, query = 0, Held(), path.partition("?")
    gc.collect()

    async def receive() -> dict[str, Any]:
        if received:
            await asyncio.Event().wait()
        received.append(1)
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        nonlocal size
        assert message.get("status", 200) == 200
        held.note()
        size += len(message.get("body", b""))

    received: list[int] = []
    scope = {
        "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1", "method": "GET",
        "scheme": "http", "path": query[0], "raw_path": query[0].encode(), "query_string": query[2].encode(),
        "root_path": "", "headers": [(b"authorization", f"Bearer {us.keys[Role.VIEWER]}".encode())], "client": None,
        "server": ("master", 80), "state": {},
    }  # fmt: skip
    await us.app(scope, receive, send)
    return size, held
