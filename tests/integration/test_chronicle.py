"""What the leader tells of crawls, members and dead letters, and that the next one goes on where it ended."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from api.crawls.known_crawls import KnownCrawls
from api.events.publisher import EventPublisher
from api.events.recorder import EventRecorder
from api.members.control_plane import Members
from shared.adapters.nats import NatsBroker
from shared.adapters.nats.jetstream import demand
from shared.adapters.sql.catalog.catalog import SqlCatalog
from shared.adapters.sql.catalog.overview import SqlOverview
from shared.adapters.sql.frontier.store import SqlStore
from shared.domain.crawl.state import Verb
from shared.domain.errors import Transient
from shared.domain.frontier.states import CrawlState, UrlState
from shared.domain.frontier.store_model import DeadLetterRow
from shared.domain.ids import CrawlId, Term
from shared.domain.ops.access import Role
from shared.domain.reads.declared import Declaration
from shared.ports.overview import CrawlOverview
from shared.wire.events import EVENTS, EVERY_EVENT, Event, EventKind, decode_event, encode_event, event_subject
from shared.wire.keys import MemberRecord
from tests.support.api.rest_api import SOMEONE, api
from tests.support.database.store_tables import NOW_MS, Tables, links, sqlite_tables
from tests.support.engines.nats_server import BrokerServer, persist
from tests.support.engines.nats_server import server as server
from tests.support.single_master import SingleMaster

M1 = MemberRecord("m1", "1", started_at_ms=1, address="127.0.0.1:1")


class Plane(SingleMaster):
    """A control plane as a test sets it."""

    def __init__(self, name: str) -> None:
        super().__init__(M1, Term(1), 8)
        self.name = name
        self.leading: Term | None = Term(1)
        self.here = Members({"m1": M1}, {})

    def is_leader(self) -> bool:
        return self.leading is not None

    def term(self) -> Term | None:
        return self.leading

    def members(self) -> Members:
        return self.here


@dataclass
class SetClock:
    """Time as a test sets it, in seconds; the wall clock begins at NOW_MS."""

    now: float = 0.0

    def elapsed(self) -> float:
        return self.now

    def unix_ms(self) -> int:
        return NOW_MS + int(self.now * 1000)


@dataclass
class Leader:
    """One master's chronicle, looked through pass by pass."""

    plane: Plane
    chronicle: EventRecorder
    telling: EventPublisher
    clock: SetClock
    store: SqlStore
    known: KnownCrawls = field(default_factory=KnownCrawls)

    async def look(self) -> None:
        """One look, and everything told of it published."""
        self.clock.now += 1.0
        changes = await self.store.crawl_changes(self.known.mark, self.known.version, self.known.next_compared())
        self.known.take(changes)
        self.chronicle.take(changes)
        await self.chronicle.once()
        publishing = asyncio.create_task(self.telling.run())
        await self.telling.finish(30.0)
        publishing.cancel()


@dataclass
class Stage:
    """A frontier with one crawl, a stream of events, and leaders over both."""

    tables: Tables
    broker: NatsBroker
    catalog: SqlCatalog
    clock: SetClock = field(default_factory=SetClock)
    read: int = 0

    def leader(self, name: str = "m1") -> Leader:
        assert isinstance(self.tables.store, SqlStore)
        plane, events = Plane(name), self.broker.events
        telling = EventPublisher(events, self.clock, name)
        overview = SqlOverview(self.tables.store.executor)
        chronicle = EventRecorder(plane, overview, events, telling, self.clock, name)
        return Leader(plane, chronicle, telling, self.clock, self.tables.store)

    async def told(self, *kinds: EventKind) -> list[Event]:
        """What is new in the stream, of these kinds."""
        state = await self.broker.events.state()
        if state.last <= self.read:
            return []
        reader = await self.broker.events.read([EVERY_EVENT], self.read)
        found = []
        try:
            while self.read < state.last:
                for stored in await reader.read(1_000, 10.0):
                    self.read = stored.sequence
                    found.append(decode_event(stored.data))
        finally:
            await reader.close()
        return [event for event in found if not kinds or event.kind in kinds]

    async def of_crawls(self) -> list[str]:
        return [f"{event.crawl} {event.action}" for event in await self.told(EventKind.CRAWL)]

    async def turn(self, verb: Verb) -> None:
        await self.catalog.turn("docs", verb, expected=None, actor=SOMEONE, now_ms=self.clock.unix_ms())


@pytest.fixture
def on_stage(tmp_path: Path, server: BrokerServer) -> Callable[..., None]:
    """`on_stage(story)` runs it over a new database and a new stream."""

    @asynccontextmanager
    async def stage() -> AsyncIterator[Stage]:
        async with sqlite_tables(tmp_path) as tables, server.broker() as broker:
            await broker.events.declare()
            assert isinstance(tables.store, SqlStore)
            yield Stage(tables, broker, SqlCatalog(tables.store.executor))

    def run(story: Callable[[Stage], Awaitable[None]]) -> None:
        async def whole() -> None:
            async with stage() as made:
                await story(made)

        asyncio.run(whole())

    return run


def test_crawl_changes_by_operator_and_leader_are_recorded_once_in_order(on_stage: Callable[..., None]) -> None:
    async def story(s: Stage) -> None:
        leader = s.leader()
        await leader.look()
        assert await s.of_crawls() == ["docs created", "docs started"]
        await s.tables.store.set_state(s.tables.crawl_id, CrawlState.RUNNING, None, NOW_MS)
        await leader.look()
        await s.turn(Verb.PAUSE)
        await leader.look()
        await leader.look()
        await s.turn(Verb.RESUME)
        await leader.look()
        await s.catalog.put(
            Declaration("docs", '{"n":2}'), expected=None, start=False, actor=SOMEONE, now_ms=s.clock.unix_ms()
        )
        await leader.look()
        await s.tables.store.set_state(s.tables.crawl_id, CrawlState.FINISHED, "max_pages", NOW_MS)
        await leader.look()
        told = await s.told(EventKind.CRAWL)
        assert [event.action for event in told] == ["seeded", "paused", "resumed", "updated", "seeded", "finished"]
        assert told[-1].data["reason"] == "max_pages"
        assert (told[-1].about, told[-1].data["revision"]) == (str(s.tables.crawl_id), 2)
        await s.turn(Verb.RESET)
        await leader.look()
        assert sorted(await s.of_crawls()) == ["docs created", "docs deleted", "docs started"]

    on_stage(story)


def test_changed_labels_of_a_crawl_are_recorded_as_an_update(on_stage: Callable[..., None]) -> None:
    async def story(s: Stage) -> None:
        leader = s.leader()
        await leader.look()
        await s.told()
        labelled = Declaration("docs", "{}", {"team": "search"})
        await s.catalog.put(labelled, expected=None, start=False, actor=SOMEONE, now_ms=s.clock.unix_ms())
        await leader.look()
        await s.turn(Verb.DELETE)
        await leader.look()
        assert await s.of_crawls() == ["docs updated", "docs deleted"]

    on_stage(story)


def test_a_change_that_could_not_be_looked_at_is_looked_at_by_the_next_pass(
    on_stage: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(stage: Stage) -> None:
        leader = stage.leader()
        await stage.tables.store.set_state(stage.tables.crawl_id, CrawlState.RUNNING, None, NOW_MS)
        await leader.look()
        await stage.told()
        await stage.turn(Verb.PAUSE)

        async def away(overview: SqlOverview, which: Collection[CrawlId]) -> Sequence[CrawlOverview]:
            raise Transient("the database is away")

        with monkeypatch.context() as patch:
            patch.setattr(SqlOverview, "crawl_overviews", away)
            with pytest.raises(Transient):
                await leader.look()
        await leader.look()
        assert await stage.of_crawls() == ["docs paused"]

    on_stage(story)


@pytest.mark.parametrize("letter", ["seven", None, [7], {"id": 7}], ids=str)
def test_an_event_in_other_words_keeps_no_leader_from_the_chronicle(
    on_stage: Callable[..., None], letter: object
) -> None:
    async def story(s: Stage) -> None:
        event = Event(EventKind.DEAD_LETTER, "9", "created", NOW_MS, "m0", "docs", {"letter": letter})
        await s.broker.events.publish(event_subject(event.kind, event.about), encode_event(event), "foreign")
        await s.leader().look()
        assert [event.action for event in await s.told(EventKind.LEADER)] == ["elected"]

    on_stage(story)


def test_a_new_leader_goes_on_where_the_last_one_ended(on_stage: Callable[..., None]) -> None:
    async def story(s: Stage) -> None:
        one, other = s.leader("m1"), s.leader("m2")
        other.plane.leading = None
        await one.look()
        await other.look()
        [*_, elected] = await s.told(EventKind.LEADER)
        assert (elected.about, elected.action) == ("m1", "elected")
        # Nobody leads: an operator pauses, a worker joins, a URL is given up.
        one.plane.leading = None
        await s.turn(Verb.PAUSE)
        await s.tables.bury(DeadLetterRow(s.tables.crawl_id, "url", NOW_MS, "5 grants expired", "http://a.test/1"))
        other.plane.here = Members({}, {"w1": MemberRecord("w1", "1", started_at_ms=5, pool="eu")})
        other.plane.leading = Term(2)
        await one.look()
        await other.look()
        told = [(event.kind, event.about, event.action) for event in await s.told() if event.kind != "progress"]
        assert told == [
            ("leader", "m2", "elected"),
            ("master", "m1", "left"),
            ("worker", "w1", "joined"),
            ("crawl", str(s.tables.crawl_id), "paused"),
            ("dead_letter", str(s.tables.crawl_id), "created"),
        ]
        await other.look()
        other.plane.leading = Term(3)
        await other.look()
        again = [event.kind for event in await s.told() if event.kind != "progress"]
        assert again == ["leader"], "nothing is told twice"

    on_stage(story)


def test_a_crawl_whose_events_have_aged_is_not_told_of_as_new(on_stage: Callable[..., None]) -> None:
    async def story(s: Stage) -> None:
        s.clock.now = 2 * 3_600.0
        leader = s.leader()
        await leader.look()
        assert await s.of_crawls() == []
        await s.turn(Verb.PAUSE)
        await leader.look()
        assert await s.of_crawls() == ["docs paused"]

    on_stage(story)


def test_progress_is_recorded_while_it_changes_and_rates_fall_to_zero(on_stage: Callable[..., None]) -> None:
    async def story(s: Stage) -> None:
        leader = s.leader()
        await s.tables.found(*links("a.test", range(40)))
        await leader.look()
        [first] = await s.told(EventKind.PROGRESS)
        assert (first.data["discovered"], first.data["queued"], first.data["rates"]) == (40, 40, [])
        for _ in range(10):
            row = await s.tables.lease("a.test", 2)
            assert row is not None
            await s.tables.settle(row, UrlState.DONE)
            await leader.look()
        told = await s.told(EventKind.PROGRESS)
        assert [event.data["done"] for event in told] == list(range(2, 22, 2))
        await s.tables.store.set_state(s.tables.crawl_id, CrawlState.FINISHED, "complete", NOW_MS)
        for _ in range(100):
            await leader.look()
        ended = await s.told(EventKind.PROGRESS)
        assert ended, "at least that it is finished"
        assert {(rate["pages_per_s"], rate["bytes_per_s"]) for rate in ended[-1].data["rates"]} == {(0.0, 0.0)}
        await leader.look()
        assert await s.told(EventKind.PROGRESS) == [], "what does not move is not told"

    on_stage(story)


@pytest.mark.parametrize("is_recorded", [False, True])
def test_rates_of_an_ended_crawl_fall_to_zero_under_a_new_leader(
    on_stage: Callable[..., None], is_recorded: bool
) -> None:
    """The crawl ends before the first leader does. `is_recorded`: that leader still publishes its end."""

    async def story(s: Stage) -> None:
        one, other = s.leader("m1"), s.leader("m2")
        await s.tables.found(*links("a.test", range(4)))
        for _ in range(2):
            await one.look()
            row = await s.tables.lease("a.test", 2)
            assert row is not None
            await s.tables.settle(row, UrlState.DONE, pages=2)
        if is_recorded:
            await one.look()
        await s.tables.store.set_state(s.tables.crawl_id, CrawlState.FINISHED, "complete", NOW_MS)
        if is_recorded:
            await one.look()
        last = (await s.told(EventKind.PROGRESS))[-1]
        assert last.data["state"] == ("finished" if is_recorded else "seeding")
        assert last.data["rates"][0]["pages_per_s"] > 0
        for _ in range(2):
            await other.look()
        told = await s.told(EventKind.PROGRESS)
        assert told[-1].data["state"] == "finished"
        rates = [(rate["window_s"], rate["pages_per_s"], rate["bytes_per_s"]) for rate in told[-1].data["rates"]]
        assert rates == [(10, 0.0, 0.0), (60, 0.0, 0.0)]
        third = s.leader("m3")
        for _ in range(3):
            await third.look()
        assert await s.told(EventKind.PROGRESS) == [], "what was published is not published again"

    on_stage(story)


def test_crawl_deleted_as_leader_begins_delays_no_progress_of_others(
    on_stage: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its progress raised an error in each pass, before that of crawls with higher ids."""

    async def story(s: Stage) -> None:
        await s.catalog.create(Declaration("other", "{}"), start=True, actor=SOMEONE, now_ms=s.clock.unix_ms())
        leader, overviews = s.leader(), SqlOverview.crawl_overviews

        async def begun(overview: SqlOverview, which: Collection[CrawlId] | None = None) -> Sequence[CrawlOverview]:
            found = await overviews(overview, which)
            monkeypatch.undo()
            await s.turn(Verb.DELETE)
            return found

        monkeypatch.setattr(SqlOverview, "crawl_overviews", begun)
        await leader.look()
        told = [f"{event.crawl} {event.action}" for event in await s.told(EventKind.CRAWL, EventKind.PROGRESS)]
        assert told == ["other created", "other started", "other updated"]

    on_stage(story)


def test_of_a_flood_of_dead_letters_some_are_told_and_the_rest_is_said_to_be(on_stage: Callable[..., None]) -> None:
    async def story(s: Stage) -> None:
        leader = s.leader()
        await s.tables.bury(DeadLetterRow(s.tables.crawl_id, "url", NOW_MS, "old", "http://a.test/old"))
        await leader.look()
        assert await s.told(EventKind.DEAD_LETTER) == [], "those of before are in the list of dead letters"
        for n in range(300):
            await s.tables.bury(DeadLetterRow(s.tables.crawl_id, "url", NOW_MS, f"{n}", f"http://a.test/{n}"))
        await leader.look()
        told = await s.told(EventKind.DEAD_LETTER)
        assert told[0].data["url"] == "http://a.test/0"
        assert [event.action for event in told].count("many_created") == 1
        assert len(told) < 300
        await s.tables.bury(DeadLetterRow(None, "outcome", NOW_MS, "cannot be read"))
        await leader.look()
        [letter] = await s.told(EventKind.DEAD_LETTER)
        assert (letter.about, letter.crawl, letter.data["kind"]) == ("0", "", "outcome")
        await leader.look()
        assert await s.told(EventKind.DEAD_LETTER) == []

    on_stage(story)


def test_a_stream_that_was_deleted_is_made_anew(on_stage: Callable[..., None]) -> None:
    async def story(s: Stage) -> None:
        leader = s.leader()
        await leader.look()
        await demand(s.broker._connection, f"STREAM.DELETE.{EVENTS}", None, 5.0)
        s.clock.now += 60.0
        await s.turn(Verb.PAUSE)
        await leader.look()
        s.read = 0
        assert await s.of_crawls() == ["docs paused"]

    on_stage(story)


def test_every_master_shows_the_rates_that_the_leader_counted(tmp_path: Path, server: BrokerServer) -> None:
    async def story() -> None:
        async with (
            sqlite_tables(tmp_path) as tables,
            server.broker() as one,
            server.broker() as other,
            api(tables.path, one) as first,
            api(tables.path, other) as second,
        ):
            assert isinstance(tables.store, SqlStore)
            await persist(one.events.declare)
            stage = Stage(tables, one, SqlCatalog(tables.store.executor))
            await tables.store.put_crawl("docs", '{"seeds": [{"url": "http://a.test/"}]}', 0)
            leader = stage.leader()
            await tables.found(*links("a.test", range(10)))
            for _ in range(3):
                await leader.look()
                row = await tables.lease("a.test", 2)
                assert row is not None
                await tables.settle(row, UrlState.DONE)
            await leader.look()
            shown = []
            for served in (first, second):
                async with served.as_role(Role.VIEWER) as client:
                    for resource in ("stats", "progress"):
                        answer = await client.get(f"/v1/crawls/docs/{resource}")
                        assert answer.status_code == 200, answer.text
                        shown.append(answer.json()["rates"])
            assert shown[0] is not None
            assert shown == [shown[0]] * 4
            stored = await one.events.last(event_subject(EventKind.PROGRESS, str(tables.crawl_id)))
            assert stored is not None
            assert shown[0]["windows"] == decode_event(stored.data).data["rates"]
            assert [rate["window_s"] for rate in shown[0]["windows"]] == [10, 60]
            server.kill()
            async with first.as_role(Role.VIEWER) as client:
                away = (await client.get("/v1/crawls/docs/stats")).json()
                lag = (await client.get("/v1/crawls/docs/lag")).json()
            assert (away["rates"], away["counters"]["done"]) == (None, 6), "the rest is shown without the broker"
            assert (lag["reports_pending"], lag["due_urls"]["count"]) == (None, 4)
            await server.restart()

    asyncio.run(story())
