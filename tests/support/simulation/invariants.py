"""What must hold in every committed state, and at the end: read from SQL by queries of its own."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from shared.adapters.sql.engine.schema import COUNTERS
from shared.domain.frontier.commands import SEED_DELETED
from shared.domain.frontier.states import RETRY, REVISIT, UrlState
from shared.domain.ids import CrawlId
from tests.support.database.url_rows import URLS
from tests.support.simulation.store import Database
from tests.support.simulation.web import SimWeb
from tests.support.simulation.world import World

_REVISITS = (
    f"SELECT coalesce(sum(state < 2 AND flags & {REVISIT | RETRY} = {REVISIT}), 0),"
    f" coalesce(sum(state = 2 AND flags & {REVISIT} <> 0), 0) FROM urls WHERE crawl_id = :c"
)
"""How many stored pages wait for their next fetch, and how many are leased for it."""


@dataclass(eq=False)
class Judge:
    """Compares what is stored with what was promised. `items`: pages whose items were stored; `deleted`: crawl -> the
    command that removes its rows;
    `taken_back`: crawl -> the seeds whose deletion was asked for."""

    world: World
    database: Database
    web: SimWeb
    items: set[tuple[int, bytes]]
    deleted: dict[int, str] = field(default_factory=dict)
    taken_back: dict[int, set[str]] = field(default_factory=dict)
    _seen_version: int = -1
    _known: dict[int, int] = field(default_factory=dict)
    _terms: int = 0

    def look(self) -> None:
        """The invariants, if anything was written since the last look."""
        if self.database.version == self._seen_version:
            return
        self._seen_version = self.database.version
        self._counts()
        self._queues()
        self._leases()
        self._gone()
        self._given()

    def position(self) -> tuple[int, int]:
        row = self.database.rows("SELECT outcome_seq, discovery_seq FROM partitions")[0]
        return int(row[0]), int(row[1])

    def summary(self) -> str:
        """Where things stand, for a failure's text."""
        states = self.database.rows("SELECT crawl_id, state, reason, count(*) FROM urls GROUP BY 1, 2, 3")
        leases = self.database.rows("SELECT lease_id, crawl_id, host_id, grants, expired FROM leases")
        queues = self.database.rows("SELECT * FROM queues")
        hosts = self.database.rows("SELECT host_id, host, failures, blocked_until_ms FROM hosts")
        return f"urls {states}, leases {leases}, queues {queues}, hosts {hosts}, position {self.position()}"

    def _blame(self, text: str) -> None:
        self.world.blame(text)

    def _removing(self) -> set[int]:
        """Return the deleted crawls whose rows are being removed, chunk by chunk: between two, nothing adds up."""
        rows = self.database.rows("SELECT crawl_id FROM commands_in_progress WHERE kind = 'delete'")
        return {row[0] for row in rows}

    def _counts(self) -> None:
        """Counters equal a recount; both identities hold; nothing that was discovered vanishes."""
        recount: dict[int, dict[int, int]] = {}
        for crawl_id, state, n in self.database.rows("SELECT crawl_id, state, count(*) FROM urls GROUP BY 1, 2"):
            recount.setdefault(crawl_id, {})[state] = n
        removing = self._removing()
        recount = {crawl_id: states for crawl_id, states in recount.items() if crawl_id not in removing}
        pages = {row[0]: row[1] for row in self.database.rows("SELECT crawl_id, sum(page) FROM fetches GROUP BY 1")}
        columns = ", ".join(COUNTERS)
        rows = self.database.rows(f"SELECT crawl_id, {columns} FROM crawl_counters")
        for row in rows:
            if row[0] in removing:
                continue
            stored = dict(zip(COUNTERS, row[1:], strict=True))
            revisits = self.database.rows(_REVISITS, c=row[0])[0]
            states = recount.pop(row[0], {})
            found = {
                "queued": states.get(UrlState.QUEUED, 0) + states.get(UrlState.WAITING, 0),
                "leased": states.get(UrlState.LEASED, 0),
                "done": states.get(UrlState.DONE, 0),
                "failed": states.get(UrlState.FAILED, 0),
                "excluded": states.get(UrlState.EXCLUDED, 0),
                "discovered": sum(states.values()),
                "pages": pages.get(row[0], 0) or 0,
                "revisits": revisits[0],
                "revisiting": revisits[1],
            }
            for name, n in found.items():
                if stored[name] != n:
                    self._blame(f"crawl {row[0]}: counter {name} is {stored[name]}, but there are {n}")
            if found["discovered"] < self._known.get(row[0], 0):
                self._blame(f"crawl {row[0]}: of {self._known[row[0]]} URLs {found['discovered']} are left")
            self._known[row[0]] = found["discovered"]
            if stored["accepted"] < stored["new"] + stored["known"] + stored["refused"]:
                self._blame(f"crawl {row[0]}: more links counted than accepted: {stored}")
        if recount:
            self._blame(f"URLs without counters: {recount}")

    def links_balanced(self, crawl_id: CrawlId) -> None:
        """accepted = new + known + refused, of what is applied (not after a broker lost its disk)."""
        rows = self.database.rows(
            "SELECT sum(accepted), sum(new + known + refused) FROM crawl_counters WHERE crawl_id = :c", c=crawl_id
        )
        if rows[0][0] != rows[0][1]:
            self._blame(f"crawl {crawl_id}: accepted {rows[0][0]} links, counted {rows[0][1]}")

    def _queues(self) -> None:
        """A queue row's numbers equal a count of its URLs."""
        for row in self.database.rows(
            "SELECT q.crawl_id, q.host_id, q.queued, q.waiting, q.leased, q.pages,"
            " coalesce(u.queued, 0), coalesce(u.waiting, 0), coalesce(u.leased, 0),"
            " (SELECT count(*) FROM fetches f WHERE f.crawl_id = q.crawl_id AND f.host_id = q.host_id AND f.page)"
            " FROM queues q LEFT JOIN (SELECT crawl_id, host_id, sum(state = 0) AS queued, sum(state = 1) AS waiting,"
            " sum(state = 2) AS leased FROM urls GROUP BY 1, 2) u USING (crawl_id, host_id)"
        ):
            if tuple(row[2:6]) != tuple(row[6:10]) and row[0] not in self._removing():
                self._blame(f"queue {row[0]}/{row[1]} says {tuple(row[2:6])}, but there are {tuple(row[6:10])}")

    def _leases(self) -> None:
        """Leased URLs have a lease, others have none; a host has one lease a slot."""
        for url, state, lease_id, row, crawl_id in self.database.rows(
            "SELECT u.url, u.state, u.lease_id, l.lease_id, u.crawl_id"
            f" FROM {URLS} u LEFT JOIN leases l ON l.lease_id = u.lease_id"
            " WHERE u.state = 2 OR u.lease_id IS NOT NULL"
        ):
            if crawl_id in self._removing():
                continue
            if state != UrlState.LEASED or row is None:
                self._blame(f"{url} in state {state} names lease {lease_id}, which is {row}")
        for host_id, slot, n in self.database.rows(
            "SELECT host_id, slot, count(*) FROM leases GROUP BY 1, 2 HAVING count(*) > 1"
        ):
            self._blame(f"host {host_id} slot {slot} is leased {n} times")

    def _gone(self) -> None:
        """Once its deletion is applied, nothing of a crawl is there but grants that have not run out."""
        for crawl_id, command in self.deleted.items():
            if not self.database.rows("SELECT 1 FROM commands WHERE id = :id", id=command):
                continue
            for table in (
                "urls",
                "queues",
                "fetches",
                "producers",
                "crawl_counters",
                "crawl_tallies",
                "links_left_out",
            ):
                n = self.database.rows(f"SELECT count(*) FROM {table} WHERE crawl_id = :c", c=crawl_id)[0][0]
                if n:
                    self._blame(f"crawl {crawl_id} was deleted, and {table} has {n} rows of it")

    def _given(self) -> None:
        """What is known as a page has given its items."""
        pages = self.database.rows("SELECT crawl_id, fingerprint FROM fetches WHERE page")
        without = [row for row in pages if (row[0], bytes(row[1])) not in self.items]
        if without:
            self._blame(f"the outcomes of {without} are applied, and their items were never stored")

    # --- the end ------------------------------------------------------------------------------------------------------

    def finished(self, crawl_id: CrawlId, expected: tuple[Sequence[int], int | None], *, lossy: bool) -> None:
        """The finished check said so: nothing is open, and nothing within reach is missing."""
        rows = self.database.rows(
            f"SELECT u.url, u.state, u.reason, coalesce(f.page, 0) FROM {URLS} u"
            " LEFT JOIN fetches f USING (crawl_id, host_id, fingerprint) WHERE u.crawl_id = :c",
            c=crawl_id,
        )
        opened = [row[0] for row in rows if row[1] < UrlState.DONE]
        if opened:
            self._blame(f"finished, though {opened} are open")
        if lossy:
            return
        self.links_balanced(crawl_id)
        if any(row[2] == "poison" for row in rows):
            return
        excluded = {row[0] for row in rows if row[2] == SEED_DELETED}
        if not excluded <= self.taken_back.get(crawl_id, set()):
            self._blame(f"{sorted(excluded)} are excluded as deleted seeds, and no command asked for all of that")
        wanted = self.web.expected(*expected, excluded)
        ends = {row[0]: UrlState(row[1]) for row in rows}
        if ends != wanted:
            missing = {url: end.name for url, end in wanted.items() if ends.get(url) != end}
            more = {url: end.name for url, end in ends.items() if url not in wanted}
            found = {url: ends[url].name for url in missing if url in ends}
            self._blame(f"finished, but of what is within reach {missing} is {found}; beyond it {more}")
        indexed = {row[0] for row in rows if row[3]}
        if indexed != self.web.pages(wanted):
            self._blame(f"the index has {sorted(indexed ^ self.web.pages(wanted))} too much or not")

    def at_rest(self, crawl_id: CrawlId, expected: tuple[Sequence[int], int | None], *, lossy: bool) -> None:
        """After the end: as `finished`, and no lease is left of a crawl that is there."""
        self.look()
        self.finished(crawl_id, expected, lossy=lossy)
        left = self.database.rows("SELECT lease_id FROM leases WHERE crawl_id = :c", c=crawl_id)
        if left:
            self._blame(f"leases {left} are left of a finished crawl")
