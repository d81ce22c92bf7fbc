"""A master's metrics: the description of each, and its value when Prometheus scrapes.

Most metrics cover only this master, so they may be summed over the masters. Metrics with the same value on every master
(members, pools, reports in the broker) say so in their description.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final, get_args

from api.frontier.ownership import Ownership
from api.frontier.stats import OwnerStats
from api.master.cluster_master import ClusterMaster
from api.observe.sampler import KINDS, StatsSampler
from api.security.limits import WrongKeys
from shared.domain.crawl.scope import ExclusionReason
from shared.domain.frontier.states import LetterKind
from shared.domain.reads.items import DROPPED
from shared.domain.schedules.history import FiringOutcome
from shared.domain.software import VERSION
from shared.domain.web.fetch import FailureKind
from shared.ports.clock import Clock
from shared.runtime.connections import ConnectionLimit
from shared.telemetry import LEASE, LIMIT, LOST, SHORT, USED, Metric, Readings, Values, pressure_readings, registry_of

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

# --- the place in the cluster -----------------------------------------------------------------------------------------

MASTER = Metric(
    "master_info",
    "gauge",
    "Always 1; labels name the master, its version and its database engine.",
    ("master", "version", "store"),
)
LEADER = Metric("leader", "gauge", "1 while this master leads and may act, else 0.")
TERM = Metric("leader_term", "gauge", "Term of the leadership; only the leader exposes it.")
VIEW = Metric("etcd_contact_age_seconds", "gauge", "Time since etcd last answered or sent a change.")
MEMBERS = Metric("members", "gauge", "Registered masters and workers; the same on every master.", ("role",))
PARTITIONS = Metric("partitions", "gauge", "Partitions of the cluster.")
OWNED = Metric("partitions_owned", "gauge", "Partitions that this master owns and has loaded.")
CRAWLS = Metric("crawls", "gauge", "Crawls that are worked on, by state; the same on every master.", ("state",))
POOL_WORKERS = Metric(
    "pool_workers", "gauge", "Workers whose status came in the last 5 s, by pool; the same on every master.", ("pool",)
)
POOL_FREE = Metric("pool_free_visits", "gauge", "Visits that these workers can take, by pool.", ("pool",))

# --- the frontier -----------------------------------------------------------------------------------------------------

URLS = Metric(
    "urls",
    "gauge",
    "URLs in its partitions by state; queued ones include those that wait for a retry.",
    ("crawl", "state"),
)
PAGES = Metric("crawl_pages", "gauge", "Pages stored, in its partitions.", ("crawl",))
BYTES = Metric("crawl_bytes", "gauge", "Bytes of these pages.", ("crawl",))
DRIFT = Metric(
    "conservation_drift", "gauge", "Difference between counters that must agree; 0 if they do.", ("crawl", "identity")
)
READ_AGE = Metric("stats_age_seconds", "gauge", "Age of the counts that are read from SQL and NATS.")
QUEUES = Metric(
    "queues_due", "gauge", "Queues (crawl and host) that may be visited now and wait for a worker, by pool.", ("pool",)
)
HOSTS = Metric("hosts_loaded", "gauge", "Hosts loaded in memory.")
SHARDS = Metric("shards", "gauge", "URL shards that are leased: pending, in_flight or expired.", ("pool", "state"))
SHARD_AGE = Metric("shard_oldest_age_seconds", "gauge", "Time since the oldest of these shards was leased.", ("state",))
REPORTS = Metric("reports_pending", "gauge", "Reports in NATS that are not purged yet; the same on every master.")
FULLNESS = Metric(
    "reports_fullness_ratio",
    "gauge",
    "How full the fullest subject of reports is; at 1 it refuses. The same on every master.",
    ("kind",),
)
REPORT_AGE = Metric(
    "report_oldest_age_seconds", "gauge", "Age of the oldest report that was read and is not applied.", ("kind",)
)
REPORT_LAG = Metric(
    "report_lag_seconds", "histogram", "Time from when NATS stored a report until it was applied.", ("kind",)
)
WORK = Metric("transaction_duration_seconds", "histogram", "Duration of the owners' committed transactions.", ("work",))
FIRINGS = Metric("schedule_firings_total", "counter", "Due times of schedules, by what became of them.", ("outcome",))
FIRING_DELAY = Metric(
    "schedule_delay_seconds",
    "histogram",
    "Time from a due time of a schedule until it fired; the schedule's jitter is a part of it.",
)
OUTCOMES = Metric(
    "outcomes_total", "counter", "Outcomes of fetches that were applied, by class of status.", ("crawl", "status")
)
ENDS = Metric(
    "url_attempts_unsuccessful_total",
    "counter",
    "Attempts that ended with a failed, excluded or retried URL.",
    ("result", "reason"),
)
HOST_FAILURES = Metric(
    "host_failures_total",
    "counter",
    "Visits that ended because the robots.txt of the host could not be fetched.",
    ("reason",),
)
STALE = Metric(
    "outcomes_stale_total", "counter", "Outcomes that came after the end of their lease and were not counted."
)
DISCARDED = Metric(
    "fetches_discarded_total",
    "counter",
    "Fetches whose report changed nothing: too late, or of a deleted crawl.",
    ("reason",),
)
LINKS = Metric(
    "links_total", "counter", "Links applied: new, known or refused; and messages that were repeated.", ("result",)
)
DISPATCHED = Metric("shards_dispatched_total", "counter", "URL shards leased.")
DISPATCHED_URLS = Metric("urls_dispatched_total", "counter", "URLs in the shards leased.")
REFUSED = Metric(
    "dispatch_deferred_total", "counter", "Shards deferred, as the last shard of their slot was still in the queue."
)
UNPUBLISHED = Metric(
    "dispatch_failed_total", "counter", "Shards not published, as NATS was away; they are published later."
)
CALLED_BACK = Metric(
    "shards_recalled_total", "counter", "Shards queued again before a worker began them, as their host must wait."
)
REPLACED = Metric("shards_republished_total", "counter", "Shards published again, as no worker came for them.")
GRANTS = Metric(
    "grant_answers_total", "counter", "Replies to workers that asked for a grant or its extension.", ("answer",)
)
EXPIRED = Metric("grants_expired_total", "counter", "Grants that expired without a final outcome.")
LETTERS = Metric("dead_letters_total", "counter", "URLs and messages that became dead letters.", ("kind",))
GAPS = Metric("report_gaps_total", "counter", "Reports of workers that are missing from the stream.")
RELOADS = Metric("owner_reloads_total", "counter", "Partitions loaded anew, as the fate of a transaction was unknown.")
STREAMS = Metric(
    "report_streams_replaced_total",
    "counter",
    "Partitions that found another report stream than the one they had read.",
)

ITEMS = Metric(
    "items_stored_total",
    "counter",
    "Items written to the table by the leader; those of a page stored again count again.",
)
ITEMS_DROPPED = Metric("items_dropped_total", "counter", "Items not written to the table.", ("reason",))
ITEM_LAG = Metric(
    "item_lag_seconds", "histogram", "Time from when NATS stored a message of items until the items were in the table."
)
CONNECTIONS = Metric("http_connections", "gauge", "Open connections to its port.")
CROWDED = Metric("http_connections_refused_total", "counter", "Connections refused at the limit.")
WRONG_KEYS = Metric(
    "wrong_keys_total", "counter", "Wrong keys, and keys that were refused without a look.", ("status",)
)
ITEMS_MISSED = Metric(
    "item_messages_missed_total", "counter", "Messages of items that left their stream before they were read."
)

METRICS: Final = (
    MASTER, LEADER, TERM, LEASE, LOST, VIEW, MEMBERS, PARTITIONS, OWNED, CRAWLS, POOL_WORKERS, POOL_FREE,
    URLS, PAGES, BYTES, DRIFT, READ_AGE, QUEUES, HOSTS, SHARDS, SHARD_AGE, REPORTS, FULLNESS, REPORT_AGE, REPORT_LAG,
    WORK, FIRINGS, FIRING_DELAY,
    OUTCOMES, ENDS, HOST_FAILURES, STALE, DISCARDED, LINKS, DISPATCHED, DISPATCHED_URLS, REFUSED, UNPUBLISHED,
    CALLED_BACK, REPLACED, GRANTS, EXPIRED, LETTERS, GAPS, RELOADS, STREAMS, ITEMS, ITEMS_DROPPED, ITEM_LAG,
    ITEMS_MISSED, USED, LIMIT,
    SHORT, CONNECTIONS, CROWDED, WRONG_KEYS,
)  # fmt: skip

_STATES: Final = ("queued", "leased", "done", "failed", "excluded")
_ENDS: Final = (
    *((end, str(kind)) for end in ("failed", "retried") for kind in FailureKind),
    *(("excluded", str(reason)) for reason in ExclusionReason),
)
_LINKS: Final = ("new", "known", "refused", "repeated")
_LETTERS: Final[tuple[str, ...]] = get_args(LetterKind)
_ANSWERS: Final = ("go", "wait", "gone", "superseded", "none")


class MasterMetrics:
    """Reads the values of a master's metrics when Prometheus scrapes.

    It reads memory only: no query, no broker request.
    """

    def __init__(
        self,
        master: ClusterMaster,
        metering: StatsSampler,
        stats: OwnerStats,
        clock: Clock,
        connections: ConnectionLimit,
        wrong_keys: WrongKeys,
        *,
        member: str,
        store: str,
        partitions: int,
    ) -> None:
        self._master = master
        self._metering = metering
        self._stats = stats
        self._clock = clock
        self._connections = connections
        self._wrong_keys = wrong_keys
        self._member = member
        self._store = store
        self._partitions = partitions

    def __repr__(self) -> str:
        return f"<MasterMetrics {self._master!r}>"

    def registry(self) -> "CollectorRegistry":
        """Return a Prometheus registry with this master's metrics and the usual metrics of its process."""
        return registry_of(METRICS, self.read)

    def read(self) -> Readings:
        """Yield each metric with its current values by label."""
        yield from self._place()
        yield from self._stored()
        yield from self._frontier()
        yield from self._counted()
        yield from pressure_readings(self._master.rationing.shortages)

    def _place(self) -> Iterator[tuple[Metric, Values]]:
        master, now = self._master, self._clock.elapsed()
        registration = master.registration
        term, members = master.term(), master.members()
        yield MASTER, {(self._member, VERSION, self._store): 1}
        yield LEADER, {(): int(master.is_leader())}
        yield TERM, {} if term is None else {(): term}
        yield LEASE, {(): registration.left_s(now)}
        yield LOST, {(): registration.lost}
        yield VIEW, {(): max(0.0, now - master.answered_at())}
        yield MEMBERS, {("master",): len(members.masters), ("worker",): len(members.workers)}
        yield PARTITIONS, {(): self._partitions}
        yield OWNED, {(): len(master.ownerships())}
        yield CRAWLS, _by_one(Counter(str(crawl.state) for crawl in master.crawls))
        yield CONNECTIONS, {(): len(self._connections)}
        yield CROWDED, {(): self._connections.refused}
        yield WRONG_KEYS, {("401",): self._wrong_keys.counted, ("429",): self._wrong_keys.limited}
        statuses = master.capacity.live(now)
        yield POOL_WORKERS, _by_one(Counter(status.pool for status in statuses))
        free: Counter[str] = Counter()
        for status in statuses:
            free[status.pool] += status.free
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
        ownerships, now = self._master.ownerships(), self._clock.elapsed()
        due: Counter[str] = Counter()
        for own in ownerships:
            due.update(own.hosts.lines.waiting(partial(own.crawls.may_dispatch, now)))
        yield QUEUES, _by_one(due)
        yield HOSTS, {(): sum(len(own.hosts) for own in ownerships)}
        shards: Counter[tuple[str, ...]] = Counter()
        oldest: dict[tuple[str, ...], float] = dict.fromkeys([("pending",), ("in_flight",), ("expired",)], 0.0)
        now_ms = self._clock.unix_ms()
        for pool, state, issued_at_ms in _out(ownerships, now):
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
        stats = self._stats
        yield REPORT_LAG, {(kind,): histogram for kind, histogram in stats.report_lag.items()}
        yield WORK, {(str(work),): histogram for work, histogram in stats.transactions.items()}
        named = stats.crawls.named().items()
        yield OUTCOMES, {(crawl, status): n for crawl, counts in named for (_, status), n in counts.items()}
        ends: dict[tuple[str, ...], float] = dict.fromkeys(_ENDS, 0.0)
        hosts: dict[tuple[str, ...], float] = {(f"robots_{kind}",): 0.0 for kind in FailureKind}
        for (kind, reason), n in stats.reasons.items():
            if kind == "host_failures":
                hosts[reason,] = n
            else:
                ends[kind, reason] = n
        yield ENDS, ends
        yield HOST_FAILURES, hosts
        yield DISCARDED, {(reason,): stats.discarded[reason] for reason in ("late", "deleted")}
        yield LINKS, {(result,): stats.links[result] for result in _LINKS}
        yield GRANTS, {(answer,): stats.answers[answer] for answer in _ANSWERS}
        yield ITEMS_DROPPED, {(reason,): stats.items_dropped[reason] for reason in DROPPED}
        yield ITEM_LAG, {(): stats.item_lag}
        yield FIRINGS, {(str(outcome),): stats.firings[outcome] for outcome in FiringOutcome}
        yield FIRING_DELAY, {(): stats.firing_delay}
        yield LETTERS, {(kind,): stats.dead_letters[kind] for kind in _LETTERS}
        for metric, n in (
            (STALE, stats.stale),
            (DISPATCHED, stats.shards),
            (DISPATCHED_URLS, stats.urls),
            (REFUSED, stats.refused),
            (UNPUBLISHED, stats.unpublished),
            (CALLED_BACK, stats.called_back),
            (REPLACED, stats.replaced),
            (EXPIRED, stats.expired),
            (GAPS, stats.gaps),
            (RELOADS, stats.reloads),
            (STREAMS, stats.new_streams),
            (ITEMS, stats.items_stored),
            (ITEMS_MISSED, stats.items_missed),
        ):
            yield metric, {(): n}


def _out(ownerships: "list[Ownership]", now: float) -> Iterator[tuple[str, str, int]]:
    """Yield the pool and state of each leased shard, and when it was leased (Unix ms).

    The states are:

    - `pending`: no worker has a grant for the shard.
    - `in_flight`: the grant of a worker is valid at `now` (Clock.elapsed).
    - `expired`: the grant has ended, but the shard is still leased.
    """
    for own in ownerships:
        for held in own.leases:
            state = "pending" if held.grant is None else "in_flight" if held.live(now) else "expired"
            yield held.row.pool, state, held.row.issued_at_ms


def _by_one(counts: Mapping[str, int]) -> Values:
    return {(name,): n for name, n in counts.items()}
