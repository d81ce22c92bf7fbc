"""Archive, discoveries, items, outcome, acknowledgement, in this order: whatever dies in between, nothing is
missing."""

import asyncio
import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from shared.adapters.objects.local import LocalSegments
from shared.domain.archive.model import RecordLocation
from shared.domain.ids import Fingerprint
from shared.domain.reads.items import TakenItem
from shared.domain.web.url import fingerprint
from shared.runtime.supervise import Tasks
from shared.wire.items import decode_items
from tests.support.api.scripted_owner import (
    CRAWL,
    PARTITION,
    UNREADABLE,
    ScriptedOwner,
    exit_of,
    owner_of,
    spec_for,
    worker,
    worker_process,
)
from tests.support.engines.nats_server import BrokerServer
from tests.support.engines.nats_server import server as server
from tests.support.web.fetchers import run
from tests.support.web.synthetic_site import SyntheticSite
from tests.support.web.web_server import Web
from tests.support.whole_records import parse_stored

Serve = Callable[..., Web]
SITE = SyntheticSite(pages=60)
FETCHED = 12
STEPS = ("after_fetch", "archived", "synced", "discoveries_acked", "items_acked", "outcome_acked", "before_ack")


def links_of(web: Web, page: int) -> set[str]:
    return {web.origins[0] + SITE.path(target) for target in SITE.links(page)} - {web.origins[0] + SITE.path(page)}


async def check(owner: ScriptedOwner, web: Web, folder: Path) -> None:
    """Each outcome in the stream has its links and items in their streams, and its record on the disk; numbers have no
    gap."""
    await owner.caught_up()
    items = await items_in_stream(owner)
    pages = {fingerprint(web.origins[0] + SITE.path(page)): page for page in range(SITE.pages)}
    known = set(owner.links())
    for outcome in owner.outcomes:
        for result in outcome.results:
            page = pages[Fingerprint(result.fingerprint)]
            assert links_of(web, page) <= known
            taken = items[Fingerprint(result.fingerprint)]
            assert [json.loads(item.data) for item in taken] == [{"title": f"Page {page}"}]
            assert result.record is not None
            place = RecordLocation(result.record.segment, result.record.offset, result.record.length)
            stored = parse_stored(LocalSegments(folder / "archive").read(place))
            assert stored.url == web.origins[0] + SITE.path(page)
    producers = defaultdict(list)
    for message in owner.discoveries:
        producers[message.producer].append(message)
    for messages in producers.values():
        assert [message.n for message in messages] == list(range(1, len(messages) + 1))
        total = 0
        for message in messages:
            total += sum(len(origin.links) for origin in message.origins)
            assert message.total == total


async def items_in_stream(owner: ScriptedOwner) -> dict[Fingerprint, tuple[TakenItem, ...]]:
    """What the stream has of each page; of two messages on one page both say the same."""
    found: dict[Fingerprint, tuple[TakenItem, ...]] = {}
    state = await owner.broker.items_state()
    if not state.last:
        return found
    reader = await owner.broker.read_items(0)
    at = 0
    while at < state.last:
        for message in await reader.read(100, 5.0):
            at = message.sequence
            crawl_id, pages = decode_items(message.data)
            assert crawl_id == CRAWL
            for page in pages:
                assert found.setdefault(page.fingerprint, page.items) == page.items
    await reader.close()
    return found


async def outlives(owner: ScriptedOwner, leases: list[int], dying: "asyncio.Task[int]", tasks: Tasks) -> bool:
    """Whether the worker reports the end of all these leases before it dies."""
    ends = tasks.start("ends", all_ended(owner, leases))
    await asyncio.wait((ends, dying), return_when=asyncio.FIRST_COMPLETED)
    if ends.done():
        return True
    ends.cancel()
    return False


async def all_ended(owner: ScriptedOwner, leases: list[int]) -> None:
    for lease in leases:
        await owner.ended(lease)


RULES = {"items": [{"name": "title", "fields": {"title": {"css": "title"}}}]}


@pytest.mark.faults
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("step", STEPS)
def test_worker_killed_between_steps_leaves_no_outcome_without_links(
    server: BrokerServer, web: Serve, tmp_path: Path, step: str, count: int
) -> None:
    served = web(SITE)
    urls = [served.origins[0] + SITE.path(page) for page in range(FETCHED)]
    more = [served.origins[0] + SITE.path(page) for page in range(FETCHED, FETCHED + count)]

    async def main() -> None:
        async with owner_of(server, tmp_path, spec_for(urls[0], extract=RULES), ack_wait_s=2) as owner:
            leases = [await owner.send(*urls[slot::3], slot=slot, delay_ms=30) for slot in range(3)]
            with worker_process(server, tmp_path, ORB_FAILPOINT=f"{step}:{count}", ORB_ACK_WAIT_S="2") as process:
                async with Tasks() as tasks:
                    dying = tasks.start("dying", exit_of(process))
                    # Of a machine that is slow, one flush takes all that came: a shard after another makes one each.
                    while more and await outlives(owner, leases, dying, tasks):
                        urls.append(more.pop())
                        leases.append(await owner.send(urls[-1], slot=len(leases)))
                    assert await dying == -9
            # What is in the streams now was there when the worker died.
            await check(owner, served, tmp_path)
            async with worker(server, tmp_path, id="w2", ack_wait_s=2):
                for lease in leases:
                    await owner.ended(lease)
            await check(owner, served, tmp_path)
            reported = {result.fingerprint for outcome in owner.outcomes for result in outcome.results}
            assert reported == {fingerprint(url) for url in urls}

    run(main())


@pytest.mark.faults
def test_broker_death_during_flush_loses_nothing_and_leaves_no_gap(
    server: BrokerServer, web: Serve, tmp_path: Path
) -> None:
    served = web(SITE)
    urls = [served.origins[0] + SITE.path(page) for page in range(40)]
    served.answer(16)

    async def main() -> None:
        async with (
            owner_of(server, tmp_path, spec_for(urls[0], extract=RULES), ack_wait_s=3, answer_s=2.0) as owner,
            worker(server, tmp_path, ack_wait_s=3, report_s=0.01),
        ):
            leases = [await owner.send(*urls[slot::4], slot=slot, delay_ms=40) for slot in range(4)]
            for pages in (2, 8):
                await owner.until(lambda least=pages: sum(len(one.results) for one in owner.outcomes) >= least)  # type: ignore[misc]  # bound now
                server.kill()
                await asyncio.to_thread(served.wait_served, 6 + pages)
                served.answer(16)  # however long the broker is away, there is something left to fetch when it is back
                await server.restart()
            served.answer(None)
            for lease in leases:
                await owner.ended(lease)
            await check(owner, served, tmp_path)
            reported = [result.fingerprint for outcome in owner.outcomes for result in outcome.results]
            assert set(reported) == {fingerprint(url) for url in urls}

    run(main())


async def making_room(owner: ScriptedOwner) -> None:
    """Remove what has been read, for ever."""
    while True:
        await owner.purge_read("discovery")
        await owner.purge_read("outcome")  # outcomes may come in several messages, too
        await asyncio.sleep(0.02)


def test_a_full_discovery_subject_holds_the_visit_until_there_is_room(
    server: BrokerServer, web: Serve, tmp_path: Path
) -> None:
    served = web(SITE)
    urls = [served.origins[0] + SITE.path(page) for page in range(4)]

    async def main() -> None:
        async with owner_of(server, tmp_path, spec_for(urls[0]), reports_per_subject=1) as owner:
            await owner.broker.publish_report(PARTITION, "discovery", UNREADABLE, "in the way")
            async with worker(server, tmp_path):
                lease = await owner.send(*urls)
                await asyncio.to_thread(served.wait_served, 1)
                assert owner.outcomes == []
                async with Tasks() as tasks:  # the pages may come in several messages, each of which takes all the room
                    tasks.start("making room", making_room(owner))
                    await owner.ended(lease)
                assert set(owner.links()) >= links_of(served, 1)

    run(main())


def test_a_full_discovery_subject_delays_no_report_without_a_link(
    server: BrokerServer, web: Serve, tmp_path: Path
) -> None:
    """Six visits, five of them without a link: all six were unreported for as long as the subject was full."""
    served = web(SITE)
    linked, *others = [served.origins[0] + path for path in (SITE.path(1), *(f"/nothing/{n}" for n in range(5)))]

    async def main() -> None:
        async with owner_of(server, tmp_path, spec_for(linked), reports_per_subject=8) as owner:
            for number in range(8):
                await owner.broker.publish_report(PARTITION, "discovery", UNREADABLE, f"in the way {number}")
            async with worker(server, tmp_path):
                held = await owner.send(linked)
                await asyncio.to_thread(served.wait_served, 1)
                leases = [await owner.send(url, slot=slot) for slot, url in enumerate(others, start=1)]
                await owner.until(lambda: {each.lease for each in owner.outcomes if each.final} >= set(leases))
                assert {outcome.lease for outcome in owner.outcomes} == set(leases)
                await owner.caught_up()
                await owner.purge_read("discovery")
                await owner.ended(held)
                assert set(owner.links()) == links_of(served, 1)

    run(main())


def test_links_are_reported_again_only_until_they_are_known_to_be_reported(
    server: BrokerServer, web: Serve, tmp_path: Path
) -> None:
    served = web(SITE)
    url = served.origins[0] + SITE.path(1)

    async def main() -> None:
        async with owner_of(server, tmp_path, spec_for(url)) as owner, worker(server, tmp_path):
            await owner.ended(await owner.send(url))
            first = owner.links()
            assert set(first) == links_of(served, 1)
            lease = await owner.send(url, slot=1)
            await owner.ended(lease)
            assert owner.links() == first
            assert owner.results(lease)[0].links == len(first)

    run(main())


def test_killed_worker_leaves_no_page_reader_behind(server: BrokerServer, web: Serve, tmp_path: Path) -> None:
    served = web(SITE)
    urls = [served.origins[0] + SITE.path(page) for page in range(FETCHED)]

    async def main() -> None:
        async with owner_of(server, tmp_path, spec_for(urls[0], extract=RULES), ack_wait_s=2) as owner:
            await owner.send(*urls, delay_ms=30)
            with worker_process(server, tmp_path) as process:
                await owner.until(lambda: len(owner.outcomes) >= 2)
                (reading,) = psutil.Process(process.pid).children()
                assert "workers.extract.process" in reading.cmdline()
                process.kill()
                await asyncio.to_thread(psutil.wait_procs, [reading], 30)
                assert not reading.is_running()

    run(main())
