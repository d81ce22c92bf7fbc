"""Answers that are sent again: the bounds of what is kept, and a crawl that is held."""

import asyncio
import json
from dataclasses import replace
from typing import cast

from api.http.cached_reads import KEPT, LARGEST, CachedCrawlReads
from api.members.member_stats import MemberStats, PressureAt
from shared.domain.crawl.spec import CrawlSpec, Egress, Scope, Seed, encode_spec
from shared.domain.frontier.states import CrawlState
from shared.domain.ids import CrawlId, Revision
from shared.domain.ops.config import MemberRole
from shared.domain.ops.watermarks import Pressure
from shared.domain.reads.declared import DeclaredCrawl, Stamp
from shared.ports.catalog import Catalog
from shared.wire.keys import MemberRecord
from tests.support.api.member_view import FixedSurroundings


class Shelf:
    """A catalog of one crawl under any name."""

    def __init__(self, url: str = "https://example.org/") -> None:
        spec = encode_spec(CrawlSpec(name="docs", seeds=(Seed(url=url),))).decode()
        self.kept = DeclaredCrawl(CrawlId(1), "docs", Revision(1), 3, CrawlState.RUNNING, spec, {})
        self.read = 0

    async def stamp(self, name: str) -> Stamp:
        return self.kept.stamp

    async def crawl(self, name: str) -> DeclaredCrawl:
        self.read += 1
        return replace(self.kept, name=name)


class Holding(MemberStats):
    """A roster that says what a test says."""

    reason: str | None = None

    def pressure(self, pool: str, now: float) -> PressureAt | None:
        if self.reason is None:
            return None
        return PressureAt(MemberRole.MASTER, "m1", (Pressure("database", self.reason),))


def shown(
    answers: CachedCrawlReads, shelf: Shelf, roster: MemberStats, name: str = "docs"
) -> tuple[dict[str, object], str]:
    answer = asyncio.run(answers.answer(name, cast(Catalog, shelf), FixedSurroundings(roster)))
    return json.loads(bytes(answer.body)), answer.headers["etag"]


def test_a_crawl_that_is_held_says_so_and_stops_saying_so() -> None:
    answers, shelf, roster = CachedCrawlReads(), Shelf(), Holding()
    told, tags = [], []
    for reason in (None, "the disk is full", "the database is full", None):
        roster.reason = reason
        body, tag = shown(answers, shelf, roster)
        told.append(body["blocking_reason"])
        tags.append(tag)
    assert told == [None, "master m1: the disk is full", "master m1: the database is full", None]
    assert len(set(tags)) == 3
    assert tags[0] == tags[3]


def test_what_was_shown_is_not_read_again_until_its_stamp_is_another() -> None:
    answers, shelf = CachedCrawlReads(), Shelf()
    for _ in range(3):
        shown(answers, shelf, MemberStats())
    assert shelf.read == 1
    shelf.kept = replace(shelf.kept, active_ms=1500)
    assert shown(answers, shelf, MemberStats())[0]["active_s"] == 1.5
    assert shelf.read == 2


def test_what_is_kept_is_bounded() -> None:
    answers, shelf = CachedCrawlReads(), Shelf()
    for number in range(KEPT + 5):
        shown(answers, shelf, MemberStats(), f"docs-{number}")
    assert repr(answers) == f"<CachedCrawlReads kept={KEPT}>"


def test_a_large_answer_is_made_anew_each_time() -> None:
    answers, shelf = CachedCrawlReads(), Shelf("https://example.org/" + "a" * LARGEST)
    for _ in range(2):
        shown(answers, shelf, MemberStats())
    assert shelf.read == 2
    assert repr(answers) == "<CachedCrawlReads kept=0>"


def test_crawl_warns_of_networks_until_the_workers_open_them() -> None:
    answers, shelf, around = CachedCrawlReads(), Shelf(), FixedSurroundings()
    spec = CrawlSpec(name="docs", seeds=(Seed(url="https://example.org/"),), egress=Egress(allow=("10.0.0.0/8",)))
    shelf.kept = replace(shelf.kept, spec=encode_spec(spec).decode())

    def warnings(*allowed: tuple[str, ...]) -> tuple[int, str]:
        around.seen.workers = {
            f"w{number}": MemberRecord(f"w{number}", "1", 1, pool="default", allow_net=networks)
            for number, networks in enumerate(allowed)
        }
        answer = asyncio.run(answers.answer("docs", cast(Catalog, shelf), around))
        return len(json.loads(bytes(answer.body))["warnings"]), answer.headers["etag"]

    unknown, closed, some, opened = (
        warnings(), warnings(()), warnings((), ("10.1.0.0/16",)), warnings(("0.0.0.0/0",)),
    )  # fmt: skip
    assert [count for count, _ in (unknown, closed, some, opened)] == [0, 1, 1, 0]
    assert len({tag for _, tag in (closed, some, opened)}) == 3


def test_crawl_with_a_refused_pattern_is_held_with_the_reason() -> None:
    """Another version stored it; the roster knows of no want of room."""
    answers, shelf = CachedCrawlReads(), Shelf()
    spec = CrawlSpec(name="docs", seeds=(Seed(url="https://example.org/"),), scope=Scope(exclude=("(?!a)",)))
    shelf.kept = replace(shelf.kept, spec=encode_spec(spec).decode())
    assert "scope.exclude[0]: '(?!a)' is not a regular expression" in str(
        shown(answers, shelf, MemberStats())[0]["blocking_reason"]
    )
    shelf.kept = replace(shelf.kept, state=CrawlState.PAUSED)
    assert shown(answers, shelf, MemberStats())[0]["blocking_reason"] is None


def test_tag_of_crawl_with_refused_pattern_changes_with_the_pressure() -> None:
    answers, shelf, roster = CachedCrawlReads(), Shelf(), Holding()
    spec = CrawlSpec(name="docs", seeds=(Seed(url="https://example.org/"),), scope=Scope(exclude=("(?!a)",)))
    shelf.kept = replace(shelf.kept, spec=encode_spec(spec).decode())
    tags = []
    for reason, pressures in ((None, 0), ("the disk is full", 1), ("the database is full", 1), (None, 0)):
        roster.reason = reason
        body, tag = shown(answers, shelf, roster)
        assert len(cast(list[object], body["resource_pressure"])) == pressures
        assert "scope.exclude[0]" in str(body["blocking_reason"])
        tags.append(tag)
    assert len(set(tags)) == 3
    assert tags[0] == tags[3]
