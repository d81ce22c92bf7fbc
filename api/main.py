"""Start the master of a crawl on one machine: connect its services, compose its parts, and stop them in reverse order.

A cluster's master is started by `cluster_main`, which loads many more libraries.
"""

import asyncio
import signal
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
import structlog
import uvloop

from api.frontier.ownership import FrontierSettings
from api.master.standalone import Standalone
from shared.adapters.local.clock import SystemClock
from shared.adapters.local.resources import memory_of_process
from shared.adapters.local.specs import LocalSpecs
from shared.adapters.local.suffixes import use_snapshot
from shared.adapters.nats.broker import NatsBroker
from shared.adapters.nats.settings import StreamSettings, login_of
from shared.adapters.objects.local import LocalSegments
from shared.adapters.objects.page_archive import ServedPages
from shared.adapters.sql.catalog.items import SqlItems
from shared.adapters.sql.frontier.store import SqliteStore
from shared.domain.crawl.spec import CrawlSpec, decode_spec
from shared.domain.crawl.spec_rules import refused_pattern
from shared.domain.errors import Unusable, single
from shared.domain.ops.watermarks import Resource
from shared.domain.web.url import public_suffix_snapshot
from shared.runtime.garbage import collecting_when_idle
from shared.runtime.retry import until_answered
from shared.runtime.stalls import ending_where_it_stands
from shared.runtime.supervise import close_on_exec, until_stopped
from shared.settings import MasterSettings, from_environment
from shared.telemetry import configure_logging

T = TypeVar("T")

log = structlog.get_logger("orb.master")

_MAX_LOCAL_HOSTS: Final = 40_000
"""Hosts that the master of a local crawl keeps in memory, over all partitions."""

DATABASE = "crawl.db"
SPEC = "spec.json"
SPECS = "specs"
ARCHIVE = "archive"


async def run(settings: MasterSettings) -> int:
    """Run the master of the crawl in the folder `settings.dir` until SIGTERM or SIGINT.

    Return the exit code: 0, or 4 if the environment is unusable.
    """
    return await until_signalled(lambda stop, up: _serve(settings, stop, up))


async def until_signalled(work: Callable[[asyncio.Event, asyncio.Event], Coroutine[Any, Any, None]]) -> int:
    """Run `work`, and make it end at SIGTERM or SIGINT. Return the exit code: 0, or 4 if the environment is unusable.

    `work` gets two events, `stop` and `up`. It sets `up` once it is started. A signal sets `stop`:

    - If `up` is set: `work` should notice `stop`, and return by itself.
    - If `up` is not set yet: `work` is cancelled.
    """
    stop, up = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    code = 0
    try:
        with ending_where_it_stands(SystemClock()), collecting_when_idle():
            await until_stopped(work(stop, up), stop, up)
    except* Unusable as group:
        log.error("master.failed", error="; ".join(map(str, single(group))))
        code = 4
    else:
        log.info("master.stopped")
    return code


async def _serve(settings: MasterSettings, stop: asyncio.Event, up: asyncio.Event) -> None:
    spec = _read_spec(settings.dir / SPEC)
    use_snapshot(settings.dir)
    clock = SystemClock()
    path = settings.dir / DATABASE
    store = await connected("database", lambda: SqliteStore.open(path, synchronous=settings.synchronous))
    try:
        partitions, _ = await connected(
            "database",
            lambda: store.open_cluster(settings.partitions, public_suffix_snapshot(), clock.unix_ms()),
        )
        broker = await connected(
            "nats",
            lambda: NatsBroker.connect(
                [settings.nats_url],
                login=login_of(settings),
                name="orb-master",
                settings=StreamSettings(ack_wait_s=settings.ack_wait_s),
            ),
        )
        archive = ServedPages(LocalSegments(settings.dir / ARCHIVE), threads=2)
        try:
            await connected("nats", lambda: broker.declare([settings.pool]))
            master = Standalone(
                spec,
                store=store,
                items=SqlItems(store.executor),
                broker=broker,
                specs=LocalSpecs(settings.dir / SPECS),
                clock=clock,
                settings=FrontierSettings(
                    partitions=partitions,
                    grant_s=settings.grant_s,
                    ack_wait_s=settings.ack_wait_s,
                    max_hosts=max(1, _MAX_LOCAL_HOSTS // partitions),
                    first_claim_rests=settings.renewed,
                ),
                alone=settings.alone,
                archive=archive,
                gauges={Resource.MEMORY: memory_of_process(settings.memory_bytes)},
                retry_id=settings.retry_id,
                unblock=settings.unblock,
                refresh_ms=settings.refresh_ms,
            )
            up.set()
            await master.run(stop, grace_s=settings.grace_s)
        finally:
            archive.close()
            await broker.close()
    finally:
        await store.close()


async def connected(engine: str, call: Callable[[], Awaitable[T]]) -> T:
    """Call `call` until it does not raise Transient, and return its result. Log each failure as that of `engine`.

    `engine`: the name of the unavailable server, such as `database`.
    """
    return await until_answered(
        call, lambda error: log.warning("master_start.delayed", engine=engine, error=str(error))
    )


def _read_spec(path: Path) -> CrawlSpec:
    try:
        spec = decode_spec(path.read_bytes())
    except FileNotFoundError:
        raise Unusable(f"{path} is missing: start the crawl with `orb crawl`") from None
    except msgspec.MsgspecError as error:
        raise Unusable(f"{path} is no crawl spec ({error}): start the crawl with `orb crawl`") from error
    if (refused := refused_pattern(spec.scope, spec.extract, spec.recrawl, spec.priority, spec.overrides)) is not None:
        raise Unusable(f"{path}: {refused}")
    return spec


def main() -> int:
    """Run the master of a crawl on one machine, with settings from the process's environment. Return the exit code."""
    settings = from_environment(MasterSettings)
    close_on_exec()
    configure_logging(settings.log_level, settings.log_format, role="master")
    return uvloop.run(run(settings))
