"""/v1/crawls/{name}/stats, /progress and /lag: the counters of a crawl, its progress, and the work that waits.

Owners keep the counters up to date in the tables, so a read costs the same for a crawl of any size. The rates come from
the leader's last progress event of the crawl, so every master returns the same.
"""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Final

from fastapi import Path
from msgspec.structs import asdict

from api.http.deps import Served, Services, problems
from api.http.routing import Router
from api.schemas.crawls import NAME
from api.schemas.frontier import CounterCheck, CrawlProgress, CrawlStats, LeftOutLink, host_body, waits_body
from api.schemas.model import moment_of
from api.schemas.progress import Lag, QueuedParts, Rates, rates_body, waiting_body
from shared.domain.crawl.host_specs import HostSpecs
from shared.domain.crawl.spec import decode_spec
from shared.domain.errors import Transient
from shared.domain.explain.waits import HostState, rested, waits_of
from shared.domain.frontier.lag import FrontierLag, Waiting
from shared.domain.frontier.recrawl_pages import COUNTED
from shared.domain.frontier.states import CrawlState
from shared.domain.frontier.store_model import Counters
from shared.domain.ids import CrawlId
from shared.wire.events import EventKind, decode_event, event_subject
from shared.wire.messages import Malformed

router = Router(prefix="/v1/crawls/{name}", tags=["progress"], responses=problems(404))
lag_router = Router(tags=["progress"])

_UNSHOWN: Final = {"version"}
MAX_HOSTS: Final = 200
"""Maximum hosts of a crawl whose waits are examined."""

RATES_S: Final = 1.0
"""Maximum seconds that a request waits for the rates of a crawl. After this time the response has no rates."""


@router.get("/stats", summary="Get a crawl's counters")
async def get_stats(name: Annotated[str, Path(pattern=NAME)], served: Served) -> CrawlStats:
    """Return the counters of a crawl, their conservation drift, and counts by HTTP status and reason.

    The response also has examples of links that were left out, the rates, and the hosts with the most pages.
    """
    crawl = await served.catalog.crawl(name)
    (counters, tallies, hosts), left_out, rates = await asyncio.gather(
        served.catalog.stats(crawl.crawl_id),
        served.catalog.left_out(crawl.crawl_id),
        _rates(served, crawl.crawl_id),
    )
    return CrawlStats(
        counters={name: value for name, value in asdict(counters).items() if name not in _UNSHOWN},
        queued_by=QueuedParts(
            new=counters.queued - counters.retries - counters.revisits,
            retry=counters.retries,
            revisit=counters.revisits,
        ),
        identity=CounterCheck(url_drift=counters.url_drift(), link_drift=counters.link_drift()),
        tallies={kind: dict(counts) for kind, counts in tallies.items() if kind not in COUNTED},
        left_out={
            reason: [LeftOutLink(url=each.url, page=each.page) for each in examples]
            for reason, examples in left_out.items()
        },
        top_hosts=[host_body(host) for host in hosts],
        rates=rates,
    )


@router.get("/progress", summary="Get a crawl's progress")
async def get_progress(name: Annotated[str, Path(pattern=NAME)], served: Served) -> CrawlProgress:
    """Return the numbers of a crawl for people and progress bars: completed and known URLs, pages, bytes, rates.

    The response also lists the commands in progress, and what the crawl waits for.
    """
    crawl = await served.catalog.crawl(name)
    now_ms, running = served.clock.unix_ms(), crawl.state in (CrawlState.SEEDING, CrawlState.RUNNING)
    counted, commands, states, rates = await asyncio.gather(
        served.overview.counters([crawl.crawl_id]),
        served.catalog.partitions_with_commands(crawl.crawl_id),
        served.overview.host_states(crawl.crawl_id, now_ms, MAX_HOSTS + 1) if running else _none(),
        _rates(served, crawl.crawl_id),
    )
    counters = counted.get(crawl.crawl_id, Counters())
    spec, more = decode_spec(crawl.spec), len(states) > MAX_HOSTS
    specs = HostSpecs(spec)
    waits = waits_of([rested(state, specs.of(state.host)) for state in states[:MAX_HOSTS]], spec, now_ms)
    known = counters.discovered - counters.excluded
    completed = counters.done + counters.failed
    active_s = crawl.active_ms / 1000
    return CrawlProgress(
        state=crawl.state,
        finished_reason=crawl.finished_reason,
        known=known,
        completed=completed,
        progress=completed / known if known else 0.0,
        pages=counters.pages,
        bytes=counters.bytes,
        active_s=active_s,
        pages_per_s=counters.pages / active_s if active_s else 0.0,
        rates=rates,
        next_due_at=_next_due(states, now_ms) if spec.recrawl.used else None,
        commands=dict(commands),
        waits=waits_body(waits, now_ms, more=more, in_flight=counters.leased > 0),
    )


def _next_due(states: Sequence[HostState], now_ms: int) -> datetime | None:
    """Return the time at which the first waiting page is due. It may be now. Return None if no page waits."""
    due_s = min((state.retry_s for state in states if state.waiting), default=None)
    return None if due_s is None else moment_of(now_ms + int(due_s * 1000))


async def _none() -> Sequence[HostState]:
    return ()


async def _rates(served: Services, crawl_id: CrawlId) -> Rates | None:
    """Return the rates in the crawl's last progress event.

    Return None if it has none, or if the broker does not answer.
    """
    try:
        async with asyncio.timeout(RATES_S):
            stored = await served.events.last(event_subject(EventKind.PROGRESS, str(crawl_id)))
            return None if stored is None else rates_body(stored, decode_event(stored.data))
    except (Transient, TimeoutError, Malformed):
        return None


# --- lag --------------------------------------------------------------------------------------------------------------

BROKER_S: Final = 2.0
"""Maximum seconds that a request waits until the broker has counted the waiting reports."""


@lag_router.get("/v1/lag", summary="Get the lag of the cluster")
async def get_cluster_lag(served: Served) -> Lag:
    """Return the lag of all running crawls.

    Growing `shards_pending` means too few workers; growing `reports_pending` means slow owners or a slow database.
    """
    return await _lag(served, None)


@lag_router.get("/v1/crawls/{name}/lag", summary="Get the lag of a crawl", responses=problems(404))
async def get_lag(name: Annotated[str, Path(pattern=NAME)], served: Served) -> Lag:
    """Return the lag of one crawl.

    Only `reports_pending` is not of this crawl: it counts the waiting reports of all crawls.
    """
    crawl = await served.catalog.crawl(name)
    return await _lag(served, crawl.crawl_id)


async def _lag(served: Services, crawl_id: CrawlId | None) -> Lag:
    now_ms = served.clock.unix_ms()
    frontier = await served.overview.lag(crawl_id, now_ms)
    reports = await _reports(served, frontier)
    return Lag(
        at=datetime.fromtimestamp(now_ms / 1000, UTC),
        due_urls=waiting_body(frontier.due),
        shards_pending=waiting_body(frontier.pending),
        shards_in_flight=waiting_body(frontier.in_flight),
        reports_pending=None if reports is None else waiting_body(reports),
    )


async def _reports(served: Services, frontier: FrontierLag) -> Waiting | None:
    """Return how many reports in the broker no owner has applied yet, and how long the oldest has waited.

    `frontier` has the position up to which each partition's reports are applied. Return None if the broker does not
    answer, so that the other numbers can still be shown.
    """
    try:
        async with asyncio.timeout(BROKER_S):
            return await served.backlog.unapplied(frontier.positions)
    except (Transient, TimeoutError):
        return None
