"""Answers that are sent again: the bounds of what is kept, and a crawl that is held."""

import asyncio
import json
from dataclasses import replace
from typing import cast

from api.control.roster import Roster
from api.shown import KEPT, LARGEST, ShownCrawls
from shared.domain.crawl import CrawlSpec, Egress, Scope, Seed, encode_spec
from shared.domain.declared import DeclaredCrawl, Stamp
from shared.domain.frontier import CrawlState
from shared.domain.ids import CrawlId, Revision
from shared.ports.catalog import Catalog
from shared.wire.keys import MemberRecord
from tests.support.surroundings import Around


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


class Holding(Roster):
    """A roster that says what a test says."""

    reason: str | None = None

    def held(self, pool: str, now: float) -> str | None:
        return self.reason


def shown(answers: ShownCrawls, shelf: Shelf, roster: Roster, name: str = "docs") -> tuple[dict[str, object], str]:
    answer = asyncio.run(answers.answer(name, cast(Catalog, shelf), Around(roster)))
    return json.loads(bytes(answer.body)), answer.headers["etag"]


def test_a_crawl_that_is_held_says_so_and_stops_saying_so() -> None:
    answers, shelf, roster = ShownCrawls(), Shelf(), Holding()
    told, tags = [], []
    for reason in (None, "the disk is full", "the database is full", None):
        roster.reason = reason
        body, tag = shown(answers, shelf, roster)
        told.append(body["held"])
        tags.append(tag)
    assert told == [None, "the disk is full", "the database is full", None]
    assert len(set(tags)) == 3
    assert tags[0] == tags[3]


def test_what_was_shown_is_not_read_again_until_its_stamp_is_another() -> None:
    answers, shelf = ShownCrawls(), Shelf()
    for _ in range(3):
        shown(answers, shelf, Roster())
    assert shelf.read == 1
    shelf.kept = replace(shelf.kept, active_ms=1500)
    assert shown(answers, shelf, Roster())[0]["active_s"] == 1.5
    assert shelf.read == 2


def test_what_is_kept_is_bounded() -> None:
    answers, shelf = ShownCrawls(), Shelf()
    for number in range(KEPT + 5):
        shown(answers, shelf, Roster(), f"docs-{number}")
    assert repr(answers) == f"<ShownCrawls kept={KEPT}>"


def test_a_large_answer_is_made_anew_each_time() -> None:
    answers, shelf = ShownCrawls(), Shelf("https://example.org/" + "a" * LARGEST)
    for _ in range(2):
        shown(answers, shelf, Roster())
    assert shelf.read == 2
    assert repr(answers) == "<ShownCrawls kept=0>"


def test_crawl_warns_of_networks_until_the_workers_open_them() -> None:
    answers, shelf, around = ShownCrawls(), Shelf(), Around()
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
    """An earlier version stored it; the roster knows of no want of room."""
    answers, shelf = ShownCrawls(), Shelf()
    spec = CrawlSpec(name="docs", seeds=(Seed(url="https://example.org/"),), scope=Scope(exclude=("(?!a)",)))
    shelf.kept = replace(shelf.kept, spec=encode_spec(spec).decode())
    assert "scope.exclude[0]: '(?!a)' is not a regular expression" in str(shown(answers, shelf, Roster())[0]["held"])
    shelf.kept = replace(shelf.kept, state=CrawlState.PAUSED)
    assert shown(answers, shelf, Roster())[0]["held"] is None
