"""Makes fetchers for tests."""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager
from ipaddress import ip_network
from typing import Any, TypeVar

import uvloop

from workers.fetch.curl import CurlFetcher
from workers.fetch.egress import EgressRules

LOOPBACK = EgressRules(allow=(ip_network("127.0.0.0/8"),))
T = TypeVar("T")


@asynccontextmanager
async def fetcher(
    rules: EgressRules = LOOPBACK,
    *,
    max_connections: int = 64,
    resolve: Mapping[str, str] | None = None,
    verify: bool = True,
    ca_bundle: str | None = None,
    source_address: str | None = None,
) -> AsyncIterator[CurlFetcher]:
    """A fetcher that is closed at the end."""
    made = CurlFetcher(
        rules,
        max_connections=max_connections,
        resolve=resolve,
        verify=verify,
        ca_bundle=ca_bundle,
        source_address=source_address,
    )
    try:
        yield made
    finally:
        await made.close()


def run(main: Coroutine[Any, Any, T], *, on_uvloop: bool = True) -> T:
    """Runs `main` as the worker does, on uvloop, with a limit that only a hang reaches."""

    async def limited() -> T:
        async with asyncio.timeout(100):
            return await main

    return uvloop.run(limited()) if on_uvloop else asyncio.run(limited())
