"""A caller of the REST API who keeps nothing of what he gets, however much it is."""

import asyncio
from typing import Any

import pyarrow

from shared.domain.ops.access import Role
from tests.support.api.rest_api import Api


async def sent(us: Api, path: str) -> tuple[int, int]:
    """How many bytes the application sends, none of which is kept; and the most that Arrow held meanwhile."""
    size, arrow, query = 0, 0, path.partition("?")

    async def receive() -> dict[str, Any]:
        if received:
            await asyncio.Event().wait()
        received.append(1)
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        nonlocal size, arrow
        assert message.get("status", 200) == 200
        arrow = max(arrow, pyarrow.total_allocated_bytes())
        size += len(message.get("body", b""))

    received: list[int] = []
    scope = {
        "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1", "method": "GET",
        "scheme": "http", "path": query[0], "raw_path": query[0].encode(), "query_string": query[2].encode(),
        "root_path": "", "headers": [(b"authorization", f"Bearer {us.keys[Role.VIEWER]}".encode())], "client": None,
        "server": ("master", 80), "state": {},
    }  # fmt: skip
    await us.app(scope, receive, send)
    return size, arrow
