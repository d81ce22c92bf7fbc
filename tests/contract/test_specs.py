"""Published specs reach workers whole and in order; absent is never taken for deleted."""

import asyncio
import os
import threading
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest

from shared.adapters.local.specs import LOOK_S, LocalSpecs
from shared.domain.crawl.spec import CrawlSpec, Seed
from shared.domain.errors import ResourceFull, Transient
from shared.domain.ids import CrawlId, Revision
from shared.ports.specs import PublishedSpec, SpecPublisher, SpecSource
from tests.support.faults.disks import filled, small

CRAWL = CrawlId(7)


def published(revision: int, *, gone: bool = False, seeds: int = 1) -> PublishedSpec:
    spec = CrawlSpec(seeds=tuple(Seed(url=f"http://example.org/{revision}/{n}") for n in range(seeds)))
    return PublishedSpec(CRAWL, Revision(revision), spec, 8, gone)


def test_what_is_published_is_what_workers_see(tmp_path: Path) -> None:
    async def main() -> None:
        publisher: SpecPublisher = LocalSpecs(tmp_path / "specs")
        source: SpecSource = LocalSpecs(tmp_path / "specs")
        for spec in (published(1), published(2), published(2, gone=True), published(5)):
            await publisher.publish(spec)
            assert await source.spec(CRAWL, spec.revision) == spec
        assert await source.spec(CRAWL, Revision(3)) == published(5), "a later revision will do"

    asyncio.run(main())


def test_absent_or_older_is_not_deleted_but_not_known_yet(tmp_path: Path) -> None:
    async def main() -> None:
        specs = LocalSpecs(tmp_path, wait_s=0.05)
        with pytest.raises(Transient, match="not published"):
            await specs.spec(CRAWL, Revision(1))
        await specs.publish(published(1))
        with pytest.raises(Transient, match="at revision 1, revision 2 is wanted"):
            await specs.spec(CRAWL, Revision(2))

    asyncio.run(main())


def test_a_reader_waits_for_the_revision_it_needs(tmp_path: Path) -> None:
    async def main() -> None:
        publisher, source = LocalSpecs(tmp_path), LocalSpecs(tmp_path, wait_s=30)
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(source.spec(CRAWL, Revision(2)))
            await publisher.publish(published(1))
            await asyncio.sleep(0)
            await publisher.publish(published(2))
        assert waiting.result() == published(2)

    asyncio.run(main())


def test_spec_publish_on_full_disk_writes_nothing_and_resumes_later(tmp_path: Path) -> None:
    with ExitStack() as stack:
        small(stack, tmp_path, 1)
        specs = LocalSpecs(tmp_path / "specs")
        asyncio.run(specs.publish(published(1)))
        with filled(tmp_path), pytest.raises(ResourceFull, match="no room for the spec of crawl 7"):
            asyncio.run(specs.publish(published(2)))
        assert specs.latest(CRAWL) == published(1)
        assert [path.name for path in (tmp_path / "specs").iterdir()] == ["7.json"], "nothing is left of the try"
        asyncio.run(specs.publish(published(2)))
        assert specs.latest(CRAWL) == published(2)


def test_a_file_that_nobody_can_read_is_replaced(tmp_path: Path) -> None:
    """The loss of power may leave one without content."""
    (tmp_path / "7.json").touch()
    specs = LocalSpecs(tmp_path)
    asyncio.run(specs.publish(published(1)))
    assert specs.latest(CRAWL) == published(1)


def test_same_spec_writes_nothing_and_older_never_replaces_newer(tmp_path: Path) -> None:
    async def main() -> None:
        specs = LocalSpecs(tmp_path)
        await specs.publish(published(2))
        before = (tmp_path / "7.json").stat()
        await specs.publish(published(2))
        await LocalSpecs(tmp_path).publish(published(1))
        after = (tmp_path / "7.json").stat()
        assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)

    asyncio.run(main())


def test_reader_looks_at_a_file_again_only_after_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker has thousands of visits, and each asks before every request whether its crawl changed."""
    now, looks, stat = 1000.0, list[str](), os.stat

    def noted(path: str) -> os.stat_result:
        looks.append(path)
        return stat(path)

    monkeypatch.setattr("shared.adapters.local.specs.time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr("shared.adapters.local.specs.os", SimpleNamespace(**vars(os) | {"stat": noted}))
    asyncio.run(LocalSpecs(tmp_path).publish(published(1)))
    source = LocalSpecs(tmp_path, look_s=LOOK_S)
    looks.clear()
    for _ in range(100):
        assert source.latest(CRAWL) == published(1)
    assert len(looks) == 1
    asyncio.run(LocalSpecs(tmp_path).publish(published(2)))
    assert source.latest(CRAWL) == published(1)
    now += LOOK_S
    assert source.latest(CRAWL) == published(2)


def test_changes_yield_only_after_a_file_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At each, every visit of a worker reads its crawl's state."""
    monkeypatch.setattr("shared.adapters.local.specs._TURN_S", 0.0)

    async def main() -> None:
        publisher, source = LocalSpecs(tmp_path), LocalSpecs(tmp_path)
        await publisher.publish(published(1))
        changes = source.changes()
        await anext(changes)
        await source.spec(CRAWL, Revision(1))
        await anext(changes)
        waiting = asyncio.ensure_future(anext(changes))
        for _ in range(100):
            await asyncio.sleep(0)
        assert not waiting.done()
        await publisher.publish(published(2))
        assert source.latest(CRAWL) == published(2), "a visit may see it first"
        await waiting

    asyncio.run(main())


def test_a_reader_never_sees_half_a_spec(tmp_path: Path) -> None:
    stop = threading.Event()

    def write() -> None:
        specs = LocalSpecs(tmp_path)
        for revision in range(1, 200):
            asyncio.run(specs.publish(published(revision, seeds=500)))
            if stop.is_set():
                return

    async def read() -> None:
        source = LocalSpecs(tmp_path, wait_s=30)
        revision = 1
        while revision < 150:
            seen = await source.spec(CRAWL, Revision(revision))
            assert seen == published(seen.revision, seeds=500)
            revision = seen.revision + 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        asyncio.run(read())
    finally:
        stop.set()
        writer.join()


def test_an_unreadable_file_is_transient(tmp_path: Path) -> None:
    (tmp_path / "7.json").write_bytes(b'{"revision": 1')
    with pytest.raises(Transient, match="cannot be read"):
        asyncio.run(LocalSpecs(tmp_path).spec(CRAWL, Revision(1)))
