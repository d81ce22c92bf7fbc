"""A master's metrics: what each means, and where it is read from when somebody scrapes.

Everything that can be summed over masters is this master's part: its partitions, its process. What every master knows
alike (members, pools, reports in the broker) says so in its text.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from api.control.cluster import ClusterMaster
from api.control.metering import KINDS, Metering
from api.frontier.ownership import Ownership
from api.frontier.tally import FrontierTally
from shared.connections import Connections
from shared.domain.fetch import FailureKind
from shared.domain.scope import ExclusionReason
from shared.domain.software import VERSION
from shared.ports.clock import Clock
from shared.telemetry import LEASE, LIMIT, LOST, SHORT, USED, Metric, Readings, Values, registry_of, room_of

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

# --- the place in the cluster -----------------------------------------------------------------------------------------

MASTER = Metric("master_info", "gauge", "1; its id, version and kind of database.", ("master", "version", "store"))
LEADER = Metric("leader", "gauge", "1 while this master leads and may act on it, else 0.")
TERM = Metric("leader_term", "gauge", "The term of its leadership; there is none on the others.")
VIEW = Metric("coordinator_view_age_seconds", "gauge", "How long ago etcd was last heard of.")
MEMBERS = Metric("members", "gauge", "Masters and workers that are registered, as every master sees it.", ("role",))
PARTITIONS = Metric("partitions", "gauge", "How many partitions the cluster has.")
OWNED = Metric("partitions_owned", "gauge", "Partitions that this master owns and has loaded.")
CRAWLS = Metric("crawls", "gauge", "Crawls that are worked on, by state, as every master sees it.", ("state",))
POOL_WORKERS = Metric("pool_workers", "gauge", "Workers heard of lately, as every master hears them.", ("pool",))
POOL_FREE = Metric("pool_free_visits", "gauge", "Visits that these workers have free.", ("pool",))

# --- the frontier -----------------------------------------------------------------------------------------------------

URLS = Metric("urls", "gauge", "URLs in its partitions; queued ones include those that wait.", ("crawl", "state"))
PAGES = Metric("crawl_pages", "gauge", "Pages stored, in its partitions.", ("crawl",))
BYTES = Metric("crawl_bytes", "gauge", "Bytes of these pages.", ("crawl",))
DRIFT = Metric("conservation_drift", "gauge", "0 while the books of its partitions balance.", ("crawl", "identity"))
READ_AGE = Metric("stored_numbers_age_seconds", "gauge", "How old the numbers are that are read from SQL and NATS.")
QUEUES = Metric("queues_due", "gauge", "Queues whose host may be visited now and that wait for a worker.")
HOSTS = Metric("hosts_held", "gauge", "Hosts held in memory.")
SHARDS = Metric(
    "shards", "gauge", "URL shards that are out: pending, in flight, or their grant expired.", ("pool", "state")
)
SHARD_AGE = Metric("shard_oldest_seconds", "gauge", "How long ago the oldest of them was leased.", ("state",))
REPORTS = Metric(
    "reports_pending", "gauge", "Reports in the broker, applied within a second or not at all; the same everywhere."
)
FULLNESS = Metric(
    "reports_fullness_ratio", "gauge", "Of the fullest subject, 1 refuses; the same everywhere.", ("kind",)
)
REPORT_AGE = Metric(
    "report_oldest_seconds", "gauge", "Age of the oldest report that was read and is not applied.", ("kind",)
)
REPORT_LAG = Metric(
    "report_lag_seconds", "histogram", "From when the broker stored a report until it was applied.", ("kind",)
)
WORK = Metric("transaction_duration_seconds", "histogram", "Owners' transactions that were committed.", ("work",))
OUTCOMES = Metric("outcomes_total", "counter", "Answers of the web that were applied.", ("crawl", "status"))
ENDS = Metric("url_ends_total", "counter", "URLs that failed, were excluded or will be tried again.", ("end", "reason"))
HOST_FAILURES = Metric("host_failures_total", "counter", "Hosts that could not be visited.", ("reason",))
STALE = Metric("stale_outcomes_total", "counter", "Outcomes that came too late to count.")
DISCARDED = Metric(
    "discarded_fetches_total", "counter", "Fetches reported too late or of a deleted crawl.", ("reason",)
)
LINKS = Metric("links_total", "counter", "Links applied: new, known, refused; or messages repeated.", ("result",))
DISPATCHED = Metric("shards_dispatched_total", "counter", "URL shards leased.")
DISPATCHED_URLS = Metric("urls_dispatched_total", "counter", "URLs in them.")
REFUSED = Metric("dispatch_refusals_total", "counter", "Shards not taken, as their slot's last was not gone yet.")
UNPUBLISHED = Metric("dispatch_failures_total", "counter", "Shards not sent, as the broker was away.")
CALLED_BACK = Metric("shards_called_back_total", "counter", "Shards queued again, as their host must wait.")
REPLACED = Metric("shards_replaced_total", "counter", "Shards sent anew, as nobody came for them.")
GRANTS = Metric("grant_answers_total", "counter", "What workers were told who asked to begin or go on.", ("answer",))
EXPIRED = Metric("grants_expired_total", "counter", "Grants that ran out without a last word.")
LETTERS = Metric("dead_letters_total", "counter", "URLs and messages given up.", ("kind",))
GAPS = Metric("report_gaps_total", "counter", "Messages of workers that are missing.")
RELOADS = Metric("owner_reloads_total", "counter", "Partitions loaded anew, as a transaction's fate was unknown.")
STREAMS = Metric("report_streams_replaced_total", "counter", "Partitions that found another stream than before.")

ITEMS = Metric("items_stored_total", "counter", "Items put in the table, by the leader; those of a page again, too.")
ITEM_LAG = Metric("item_lag_seconds", "histogram", "From when the broker stored items until they were in the table.")
CONNECTIONS = Metric("http_connections", "gauge", "Connections to its port that are open.")
CROWDED = Metric("http_connections_refused_total", "counter", "Those that came when there were as many as may be.")
ITEMS_MISSED = Metric("item_messages_missed_total", "counter", "Messages of items that left their stream unread.")

METRICS: Final = (
    MASTER, LEADER, TERM, LEASE, LOST, VIEW, MEMBERS, PARTITIONS, OWNED, CRAWLS, POOL_WORKERS, POOL_FREE,
    URLS, PAGES, BYTES, DRIFT, READ_AGE, QUEUES, HOSTS, SHARDS, SHARD_AGE, REPORTS, FULLNESS, REPORT_AGE, REPORT_LAG,
    WORK, OUTCOMES, ENDS, HOST_FAILURES, STALE, DISCARDED, LINKS, DISPATCHED, DISPATCHED_URLS, REFUSED, UNPUBLISHED,
    CALLED_BACK, REPLACED, GRANTS, EXPIRED, LETTERS, GAPS, RELOADS, STREAMS, ITEMS, ITEM_LAG, ITEMS_MISSED, USED, LIMIT,
    SHORT, CONNECTIONS, CROWDED,
)  # fmt: skip

_STATES: Final = ("queued", "leased", "done", "failed", "excluded")
_ENDS: Final = (
    *((end, str(kind)) for end in ("failed", "retried") for kind in FailureKind),
    *(("excluded", str(reason)) for reason in ExclusionReason),
)
_LINKS: Final = ("new", "known", "refused", "repeated")
_LETTERS: Final = ("url", "outcome", "discovery", "items")
_ANSWERS: Final = ("go", "wait", "gone", "superseded", "none")


class MasterMetrics:
    """Reads them. Nothing here waits, and nothing is asked of an engine."""

    def __init__(
        self,
        master: ClusterMaster,
        metering: Metering,
        tally: FrontierTally,
        clock: Clock,
        connections: Connections,
        *,
        member: str,
        store: str,
        partitions: int,
    ) -> None:
        self._master = master
        self._metering = metering
        self._tally = tally
        self._clock = clock
        self._connections = connections
        self._member = member
        self._store = store
        self._partitions = partitions

    def __repr__(self) -> str:
        return f"<MasterMetrics {self._master!r}>"

    def registry(self) -> "CollectorRegistry":
        """The registry of the process."""
        return registry_of(METRICS, self.read)

    def read(self) -> Readings:
        """Everything as it is now."""
        yield from self._place()
        yield from self._stored()
        yield from self._frontier()
        yield from self._counted()
        yield from room_of(self._master.rationing.shortages)

    def _place(self) -> Iterator[tuple[Metric, Values]]:
        master, now = self._master, self._clock.elapsed()
        registration = master.registration
        term, members = master.term(), master.members()
        yield MASTER, {(self._member, VERSION, self._store): 1}
        yield LEADER, {(): int(master.is_leader())}
        yield TERM, {} if term is None else {(): term}
        yield LEASE, {(): registration.left_s(now)}
        yield LOST, {(): registration.lost}
        yield VIEW, {(): max(0.0, now - master.heard_at())}
        yield MEMBERS, {("master",): len(members.masters), ("worker",): len(members.workers)}
        yield PARTITIONS, {(): self._partitions}
        yield OWNED, {(): len(master.ownerships())}
        yield CRAWLS, _by_one(Counter(str(crawl.state) for crawl in master.crawls))
        yield CONNECTIONS, {(): len(self._connections)}
        yield CROWDED, {(): self._connections.refused}
        heard = master.room.live(now)
        yield POOL_WORKERS, _by_one(Counter(status.pool for status in heard))
        free: Counter[str] = Counter()
        for status in heard:
            free[status.pool] += max(0, status.visits - status.busy) if status.pulling else 0
        yield POOL_FREE, _by_one(free)

    def _stored(self) -> Iterator[tuple[Metric, Values]]:
        stored = self._metering.stored
        counted = stored.counters.items()
        yield URLS, {(crawl, state): getattr(counters, state) for crawl, counters in counted for state in _STATES}
        yield PAGES, {(crawl,): counters.pages for crawl, counters in counted}
        yield BYTES, {(crawl,): counters.bytes for crawl, counters in counted}
        drift: dict[tuple[str, ...], float] = {(crawl, "urls"): counters.url_drift() for crawl, counters in counted}
        drift |= {(crawl, "links"): counters.link_drift() for crawl, counters in counted}
        yield DRIFT, drift
        yield READ_AGE, {(): max(0.0, self._clock.elapsed() - stored.at)}
        yield REPORTS, {(): stored.reports}
        yield FULLNESS, {(kind,): full for kind, full in stored.fullness.items()}

    def _frontier(self) -> Iterator[tuple[Metric, Values]]:
        ownerships = self._master.ownerships()
        yield QUEUES, {(): sum(own.front.due() for own in ownerships)}
        yield HOSTS, {(): sum(len(own.front) for own in ownerships)}
        shards: Counter[tuple[str, ...]] = Counter()
        oldest: dict[tuple[str, ...], float] = dict.fromkeys([("pending",), ("in_flight",), ("expired",)], 0.0)
        now_ms = self._clock.unix_ms()
        for pool, state, issued_at_ms in _out(ownerships, self._clock.elapsed()):
            shards[pool, state] += 1
            oldest[state,] = max(oldest[state,], (now_ms - issued_at_ms) / 1000)
        yield SHARDS, shards
        yield SHARD_AGE, oldest
        ages: dict[tuple[str, ...], float] = {}
        for kind in KINDS:
            in_hand = [own.in_hand[kind] for own in ownerships if kind in own.in_hand]
            ages[kind,] = max(0.0, now_ms / 1000 - min(in_hand) / 1e9) if in_hand else 0.0
        yield REPORT_AGE, ages

    def _counted(self) -> Iterator[tuple[Metric, Values]]:
        tally = self._tally
        yield REPORT_LAG, {(kind,): histogram for kind, histogram in tally.report_lag.items()}
        yield WORK, {(str(work),): histogram for work, histogram in tally.transactions.items()}
        named = tally.crawls.named().items()
        yield OUTCOMES, {(crawl, status): n for crawl, counts in named for (_, status), n in counts.items()}
        ends: dict[tuple[str, ...], float] = dict.fromkeys(_ENDS, 0.0)
        hosts: dict[tuple[str, ...], float] = {(str(kind),): 0.0 for kind in FailureKind}
        for (kind, reason), n in tally.reasons.items():
            if kind == "host_failures":
                hosts[reason,] = n
            else:
                ends[kind, reason] = n
        yield ENDS, ends
        yield HOST_FAILURES, hosts
        yield DISCARDED, {(reason,): tally.discarded[reason] for reason in ("late", "deleted")}
        yield LINKS, {(result,): tally.links[result] for result in _LINKS}
        yield GRANTS, {(answer,): tally.answers[answer] for answer in _ANSWERS}
        yield ITEM_LAG, {(): tally.item_lag}
        yield LETTERS, {(kind,): tally.dead_letters[kind] for kind in _LETTERS}
        for metric, n in (
            (STALE, tally.stale),
            (DISPATCHED, tally.shards),
            (DISPATCHED_URLS, tally.urls),
            (REFUSED, tally.refused),
            (UNPUBLISHED, tally.unpublished),
            (CALLED_BACK, tally.called_back),
            (REPLACED, tally.replaced),
            (EXPIRED, tally.expired),
            (GAPS, tally.gaps),
            (RELOADS, tally.reloads),
            (STREAMS, tally.new_streams),
            (ITEMS, tally.items_stored),
            (ITEMS_MISSED, tally.items_missed),
        ):
            yield metric, {(): n}


def _out(ownerships: "list[Ownership]", now: float) -> Iterator[tuple[str, str, int]]:
    """Pool and state of each shard that is out, and when it was leased (Unix ms)."""
    for own in ownerships:
        for held in own.leases:
            state = "pending" if held.grant is None else "in_flight" if held.live(now) else "expired"
            yield held.row.pool, state, held.row.issued_at_ms


def _by_one(counts: Mapping[str, int]) -> Values:
    return {(name,): n for name, n in counts.items()}
