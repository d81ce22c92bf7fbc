"""A shard that a worker cannot read reaches its owner as evidence before it leaves the queue."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import nats

from shared.domain.ids import numbered
from shared.wire.messages import KEPT_BYTES
from tests.support.api.scripted_owner import PARTITION, owner_of, spec_for, worker
from tests.support.engines.nats_server import POOL, BrokerServer
from tests.support.engines.nats_server import server as server
from tests.support.web.fetchers import run
from tests.support.web.synthetic_site import SyntheticSite
from tests.support.web.web_server import Web

SITE = SyntheticSite(pages=4)
HOST = numbered(1, PARTITION)


def test_worker_reports_unreadable_shard_to_owner_and_takes_next(
    server: BrokerServer, web: Callable[..., Web], tmp_path: Path
) -> None:
    served = web(SITE)
    noise = b"\xc1" + bytes(KEPT_BYTES)

    async def main() -> None:
        async with owner_of(server, tmp_path, spec_for(served.origins[0])) as owner, worker(server, tmp_path):
            assert await owner.broker.publish_shard(POOL, PARTITION, HOST, 0, noise)
            await owner.until(lambda: len(owner.unreadable) == 1)
            [told] = owner.unreadable
            assert (told.pool, told.host_id, told.slot, told.worker) == (POOL, HOST, 0, "w1")
            assert (told.size, told.data) == (len(noise), noise[:KEPT_BYTES])
            assert told.reason
            await owner.ended(await owner.send(served.origins[0] + SITE.path(1)))
            assert len(owner.unreadable) == 1

    run(main())


def test_a_shard_that_cannot_be_read_stays_until_its_owner_can_be_told(server: BrokerServer, tmp_path: Path) -> None:
    async def main() -> None:
        async with owner_of(server, tmp_path, spec_for("http://a.test/"), reports_per_subject=1) as owner:
            await owner.broker.publish_report(PARTITION, "outcome", b"\xc1", "in the way")
            async with worker(server, tmp_path):
                assert await owner.broker.publish_shard(POOL, PARTITION, HOST, 0, b"noise")
                for _ in range(3):  # it is handed back about every second
                    await asyncio.sleep(0.5)
                    assert await owner.broker.queued_visits(PARTITION)
                assert owner.unreadable == []
                await owner.broker.purge_reports(PARTITION, "outcome", 1)
                await owner.until(lambda: len(owner.unreadable) == 1)

    run(main())


def test_a_shard_on_a_subject_that_names_no_place_is_let_go(server: BrokerServer, tmp_path: Path) -> None:
    async def main() -> None:
        async with owner_of(server, tmp_path, spec_for("http://a.test/")) as owner:
            stream = f"visits.{POOL}.nowhere.{HOST}.0"
            login = server.login("master")
            client = await nats.connect(server.endpoint.url, user=login.user, password=login.password)
            await client.jetstream().publish(stream, b"noise")
            async with worker(server, tmp_path):
                while (await client.jetstream().stream_info(f"VISITS_{POOL}")).state.messages:  # noqa: ASYNC110  no event
                    await asyncio.sleep(0.02)
            await client.close()
            assert owner.unreadable == []

    run(main())
