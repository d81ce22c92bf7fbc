"""Specs that a leader publishes reach workers whole and in order, over every coordinator; absent is never deleted."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from msgspec.structs import replace

from shared.adapters.etcd.specs import EtcdSpecPublisher, EtcdSpecs
from shared.domain.crawl.spec import CrawlSpec, Fetch, Seed, encode_spec
from shared.domain.errors import OwnershipLost, Transient
from shared.domain.ids import CrawlId, Revision
from shared.domain.ops.published_specs import MAX_SPEC_BYTES, published_text
from shared.ports.coordinator import Coordinator, Leadership
from shared.ports.specs import PublishedSpec, SpecPublisher, SpecSource
from shared.wire.keys import Keys
from tests.support.engines.etcd import settled

CRAWL = CrawlId(7)
KEYS = Keys("test")

Story = Callable[[Coordinator], Awaitable[None]]


@asynccontextmanager
async def leading(c: Coordinator) -> AsyncIterator[Leadership]:
    async with c.session(30.0) as session:
        yield await session.campaign(KEYS.leader, b"me")


@asynccontextmanager
async def watching(c: Coordinator) -> AsyncIterator[SpecSource]:
    async with c.watch(KEYS.crawls) as view:
        yield EtcdSpecs(view, KEYS, wait_s=30.0)


def published(revision: int, *, gone: bool = False) -> PublishedSpec:
    spec = CrawlSpec(seeds=(Seed(url=f"http://example.org/{revision}"),))
    return PublishedSpec(CRAWL, Revision(revision), spec, 8, gone)


def test_what_is_published_is_what_workers_see(on_coordinator: Callable[[Story], None]) -> None:
    async def story(c: Coordinator) -> None:
        async with leading(c) as leadership, watching(c) as source:
            publisher: SpecPublisher = EtcdSpecPublisher(c, leadership, KEYS)
            for spec in (published(1), published(2), published(5)):
                await publisher.publish(spec)
                assert await source.spec(CRAWL, spec.revision) == spec
            assert await source.spec(CRAWL, Revision(3)) == published(5), "a later revision will do"

    on_coordinator(story)


def test_largest_spec_that_may_be_published_reaches_workers(on_coordinator: Callable[[Story], None]) -> None:
    """etcd refuses a request over 1.5 MiB, also one that replaces the record by that of the deleted crawl."""
    short = CrawlSpec(seeds=(Seed(url="http://example.org/"),), fetch=Fetch(headers={"x-long": ""}))
    long = replace(short, fetch=Fetch(headers={"x-long": "x" * (MAX_SPEC_BYTES - len(encode_spec(short)))}))
    document = encode_spec(long)
    assert len(published_text(document)) == MAX_SPEC_BYTES
    spec = PublishedSpec(CRAWL, Revision(2**31 - 1), long, 4096, paused=True, document=document)

    async def story(c: Coordinator) -> None:
        async with leading(c) as leadership, watching(c) as source:
            publisher = EtcdSpecPublisher(c, leadership, KEYS)
            await publisher.publish(spec)
            assert (await source.spec(CRAWL, spec.revision)).spec == long
            await publisher.publish(dataclasses.replace(spec, gone=True))

    on_coordinator(story)


def test_absent_or_older_is_not_deleted_but_not_known_yet(on_coordinator: Callable[[Story], None]) -> None:
    async def story(c: Coordinator) -> None:
        async with leading(c) as leadership, c.watch(KEYS.crawls) as view:
            source = EtcdSpecs(view, KEYS, wait_s=0.05)
            with pytest.raises(Transient, match="not published"):
                await source.spec(CRAWL, Revision(1))
            await EtcdSpecPublisher(c, leadership, KEYS).publish(published(1))
            await settled(view, lambda snapshot: bool(snapshot.entries))
            with pytest.raises(Transient, match=r"revision 2 is wanted"):
                await source.spec(CRAWL, Revision(2))

    on_coordinator(story)


def test_deleted_crawl_stays_deleted_at_every_revision(
    on_coordinator: Callable[[Story], None],
) -> None:
    async def story(c: Coordinator) -> None:
        async with leading(c) as leadership, watching(c) as source:
            publisher = EtcdSpecPublisher(c, leadership, KEYS)
            await publisher.publish(published(1))
            await publisher.publish(published(1, gone=True))
            await publisher.publish(published(2))
            waited = await source.spec(CRAWL, Revision(1))
            while not waited.gone:
                waited = await source.spec(CRAWL, Revision(2))
            assert waited == published(1, gone=True)
            assert await source.spec(CRAWL, Revision(2)) == published(1, gone=True)

    on_coordinator(story)


def test_a_reader_waits_for_the_revision_it_needs(on_coordinator: Callable[[Story], None]) -> None:
    async def story(c: Coordinator) -> None:
        async with leading(c) as leadership, watching(c) as source:
            publisher = EtcdSpecPublisher(c, leadership, KEYS)
            async with asyncio.TaskGroup() as group:
                waiting = group.create_task(source.spec(CRAWL, Revision(2)))
                await publisher.publish(published(1))
                await publisher.publish(published(2))
            assert waiting.result() == published(2)

    on_coordinator(story)


def test_same_spec_writes_nothing_and_older_never_replaces_newer(
    on_coordinator: Callable[[Story], None],
) -> None:
    async def story(c: Coordinator) -> None:
        async with leading(c) as leadership:
            publisher = EtcdSpecPublisher(c, leadership, KEYS)
            await publisher.publish(published(2))
            before = await c.get(KEYS.crawl(CRAWL))
            await publisher.publish(published(2))
            await publisher.publish(published(1))
            assert await c.get(KEYS.crawl(CRAWL)) == before

    on_coordinator(story)


def test_a_deposed_leader_publishes_nothing(on_coordinator: Callable[[Story], None]) -> None:
    async def story(c: Coordinator) -> None:
        async with leading(c) as leadership:
            await leadership.resign()
            with pytest.raises(OwnershipLost):
                await EtcdSpecPublisher(c, leadership, KEYS).publish(published(1))
            assert await c.get(KEYS.crawl(CRAWL)) is None

    on_coordinator(story)
