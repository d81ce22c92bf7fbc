"""Every coordinator that there is: etcd, and the one of tests, in their process."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Final

from shared.ports.coordinator import Coordinator
from tests.support.engines.etcd import CLOCK, coordinator, etcd
from tests.support.engines.local_coordinator import LocalCoordinator


@asynccontextmanager
async def over_etcd(folder: Path) -> AsyncIterator[Coordinator]:
    """Lists are read in pages of three."""
    async with etcd(folder / "etcd") as server, coordinator(server.endpoint, page=3) as opened:
        yield opened


@asynccontextmanager
async def in_process(_: Path) -> AsyncIterator[Coordinator]:
    yield LocalCoordinator(CLOCK)


COORDINATORS: Final[dict[str, Callable[[Path], AbstractAsyncContextManager[Coordinator]]]] = {
    "etcd": over_etcd,
    "local": in_process,
}
