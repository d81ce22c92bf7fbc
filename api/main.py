"""The master's composition root. The order of the contexts is the order of shutdown, reversed."""

import asyncio
import signal
from pathlib import Path

import msgspec
import structlog
import uvloop

from api.control.standalone import Standalone
from api.frontier.ownership import FrontierSettings
from shared.adapters.local.clock import SystemClock
from shared.adapters.local.specs import LocalSpecs
from shared.adapters.local.suffixes import use_snapshot
from shared.adapters.nats.broker import NatsBroker
from shared.adapters.nats.settings import StreamSettings
from shared.adapters.sql.store import SqliteStore
from shared.domain.crawl import CrawlSpec, decode_spec
from shared.domain.errors import Unusable
from shared.domain.url import public_suffix_snapshot
from shared.settings import MasterSettings, from_environment
from shared.telemetry import configure_logging

log = structlog.get_logger("orb.master")

DATABASE = "crawl.db"
SPEC = "spec.json"
SPECS = "specs"


async def run(settings: MasterSettings) -> int:
    """Work on the folder's crawl until SIGTERM; 0, or 4 when the environment does not carry it."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    code = 0
    try:
        await _serve(settings, stop)
    except* Unusable as group:
        log.error("master.unusable", error="; ".join(map(str, _leaves(group))))
        code = 4
    return code


async def _serve(settings: MasterSettings, stop: asyncio.Event) -> None:
    spec = _read_spec(settings.dir / SPEC)
    use_snapshot(settings.dir)
    clock = SystemClock()
    store = await SqliteStore.open(settings.dir / DATABASE, synchronous=settings.synchronous)
    try:
        partitions, _ = await store.open_cluster(settings.partitions, public_suffix_snapshot(), clock.unix_ms())
        broker = await NatsBroker.connect(
            [settings.nats_url],
            token=settings.nats_token,
            name="orb-master",
            settings=StreamSettings(ack_wait_s=settings.ack_wait_s),
        )
        try:
            await broker.declare([settings.pool])
            master = Standalone(
                spec,
                store=store,
                broker=broker,
                specs=LocalSpecs(settings.dir / SPECS),
                clock=clock,
                settings=FrontierSettings(
                    partitions=partitions, grant_s=settings.grant_s, ack_wait_s=settings.ack_wait_s
                ),
                alone=settings.alone,
            )
            await master.run(stop, grace_s=settings.grace_s)
        finally:
            await broker.close()
    finally:
        await store.close()
    log.info("master.stopped")


def _read_spec(path: Path) -> CrawlSpec:
    try:
        return decode_spec(path.read_bytes())
    except FileNotFoundError:
        raise Unusable(f"{path} is missing: start the crawl with `orb crawl`") from None
    except msgspec.MsgspecError as error:
        raise Unusable(f"{path} is no crawl spec ({error}): start the crawl with `orb crawl`") from error


def _leaves(group: BaseExceptionGroup[Unusable]) -> list[BaseException]:
    found: list[BaseException] = []
    for error in group.exceptions:
        found += _leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found


def main() -> int:
    """Run from the process's environment."""
    settings = from_environment(MasterSettings)
    configure_logging(settings.log_level, settings.log_format, role="master")
    return uvloop.run(run(settings))
