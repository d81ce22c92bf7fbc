"""The judge of a history: a pure function that finds every broken promise, and refuses to judge too little."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from shared.domain.frontier.states import UrlState
from tests.support.faults.history import CrawlSeen, History, LeaseTurn, SharedPeriod
from tests.support.faults.plan import FaultKind, FaultTarget
from tests.support.web import log_judge
from tests.support.web.exchange_log import Exchange
from tests.support.web.log_judge import TooLittleTraffic

LEAST_EXCHANGES = 20
"""Requests per round, on average, below which a run proves nothing."""

_NS = 1e-9


class Promise(StrEnum):
    """What was promised (architecture: promises), and broken."""

    LOST = "lost"
    """A page or an acknowledged seed that did not end, a crawl that did not finish, a record that cannot be read."""
    TWICE = "stored twice"
    REPEATED = "requested too often"
    """A URL was requested again although no grant that held it had expired and no visit was cut off."""
    UNFAIR = "unfair"
    """Crawls that always had work did not share a host's time, or a pool's capacity, by their weights."""
    IMPOLITE = "impolite"
    TWO_OWNERS = "two owners"
    STALE_WRITE = "stale write"
    """A deposed owner, or a transaction without an owner, changed what only an owner may."""
    IDENTITY = "identity"
    UNDEAD = "deleted and not gone"
    BURIED = "dead letters"
    """An unreadable message that is not kept as a dead letter, once (a shard: at least once, as it may be
    delivered again before its acknowledgement is known); or one of ours that is."""
    ANSWER = "answer"
    """A client was told of a fault of the server's own."""


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken promise and the evidence."""

    promise: Promise
    evidence: str


def validate(history: History) -> tuple[Violation, ...]:
    """Every broken promise; none is what is wanted. TooLittleTraffic when the history could not show one."""
    _enough(history)
    found: list[Violation] = []
    for crawl in history.crawls:
        found += _lost(crawl)
        found += _twice(crawl)
        found += _identities(crawl)
        found += _repeated(crawl, history)
    found += (
        Violation(Promise.UNDEAD, f"{crawl.name} is {crawl.state}, with {crawl.urls} URLs and {crawl.leases} shards")
        for crawl in history.deleted
        if (crawl.state, crawl.urls, crawl.leases) != ("deleted", 0, 0)
    )
    found += _records(history)
    found += (Violation(Promise.LOST, left) for left in history.left)
    found += (Violation(Promise.IMPOLITE, evidence) for evidence in (*impolite(history, after_stop=False),))
    found += (Violation(Promise.UNFAIR, evidence) for shared in history.shared for evidence in unfair(history, shared))
    found += _buried(history)
    found += _owners(history)
    found += _writes(history)
    found += (
        Violation(Promise.ANSWER, f"{status} to {count} requests")
        for status, count in sorted(history.statuses.items())
        if status >= 500 and status not in (502, 503, 504)
    )
    return tuple(found)


def _enough(history: History) -> None:
    struck = [round for round in history.rounds if round.skipped is None]
    if not struck:
        raise TooLittleTraffic("nothing was struck")
    before = {crawl.agent for shared in history.shared for crawl in shared.crawls}
    served = [
        exchange
        for exchange in history.exchanges
        if exchange.complete and exchange.path != "/robots.txt" and exchange.user_agent not in before
    ]
    if len(served) < LEAST_EXCHANGES * len(struck):
        raise TooLittleTraffic(f"{len(served)} requests were answered in {len(struck)} rounds")
    last = max(exchange.begun_ns for exchange in served)
    for round in struck:
        if round.begun_ns >= last:
            raise TooLittleTraffic(f"no request followed round {round.number} ({round.fault.name}): it struck no crawl")
    if not history.fences or not history.leases:
        raise TooLittleTraffic("the database has no word of any owner")
    if history.rescoped and not history.rediscovered:
        raise TooLittleTraffic("scopes became wider, and no page was read again")
    if not history.crawls or not any(crawl.seeds for crawl in history.crawls):
        raise TooLittleTraffic("no seed was acknowledged")


def _lost(crawl: CrawlSeen) -> Iterator[Violation]:
    if (crawl.state, crawl.reason) != ("finished", "complete"):
        yield Violation(Promise.LOST, f"{crawl.name} is {crawl.state} ({crawl.reason}), not finished")
    ended = {url for url, state in crawl.urls.items() if state in (UrlState.DONE, UrlState.FAILED, UrlState.EXCLUDED)}
    for url in sorted(crawl.urls.keys() - ended):
        yield Violation(Promise.LOST, f"{crawl.name}: {url} is still {crawl.urls[url].name}")
    for url in sorted(crawl.seeds - crawl.urls.keys()):
        yield Violation(Promise.LOST, f"{crawl.name}: {url} was acknowledged as a seed and is nowhere")
    stored = {page.url for page in crawl.pages if page.status == 200}
    for url in sorted(crawl.expected - stored):
        state, reason = crawl.urls.get(url), crawl.reasons.get(url, "no reason")
        known = "unknown" if state is None else f"{state.name}, {reason}"
        yield Violation(Promise.LOST, f"{crawl.name}: no page of {url} ({known})")
    for url in sorted(stored - crawl.expected - crawl.offered):
        yield Violation(Promise.LOST, f"{crawl.name}: {url} is stored and is no page of the site")
    if crawl.leases:
        yield Violation(Promise.LOST, f"{crawl.name}: {crawl.leases} shards are still leased")


def _twice(crawl: CrawlSeen) -> Iterator[Violation]:
    for url, times in Counter(page.url for page in crawl.pages).items():
        if times > 1:
            yield Violation(Promise.TWICE, f"{crawl.name}: {url} stands {times} times in the index")
    for place, times in Counter((page.segment, page.offset) for page in crawl.pages).items():
        if times > 1:
            yield Violation(Promise.TWICE, f"{crawl.name}: {times} pages lie at {place}")
    if crawl.counters["pages"] != len(crawl.pages):
        yield Violation(
            Promise.TWICE, f"{crawl.name}: {crawl.counters['pages']} pages counted, {len(crawl.pages)} kept"
        )


def _identities(crawl: CrawlSeen) -> Iterator[Violation]:
    n = crawl.counters
    kept = Counter(crawl.urls.values())
    if n["discovered"] != n["queued"] + n["leased"] + n["done"] + n["failed"] + n["excluded"]:
        yield Violation(Promise.IDENTITY, f"{crawl.name}: URLs do not add up: {dict(n)}")
    if n["accepted"] != n["new"] + n["known"] + n["refused"]:
        yield Violation(Promise.IDENTITY, f"{crawl.name}: links do not add up: {dict(n)}")
    for state in (UrlState.DONE, UrlState.FAILED):
        if n[state.name.lower()] != kept[state]:
            yield Violation(
                Promise.IDENTITY, f"{crawl.name}: {n[state.name.lower()]} counted {state.name}, {kept[state]} kept"
            )


def _repeated(crawl: CrawlSeen, history: History) -> Iterator[Violation]:
    cuts = [
        (round.begun_ns, (round.whole_ns or round.over_ns) + CUT_NS)
        for round in history.rounds
        if (round.fault.kind, round.fault.who) == (FaultKind.RESTART, FaultTarget.WORKER)
    ]
    for evidence in requested_too_often(crawl, history.exchanges, cuts):
        yield Violation(Promise.REPEATED, evidence)


def requested_too_often(crawl: CrawlSeen, log: Iterable[Exchange], cuts: Sequence[tuple[int, int]]) -> Iterator[str]:
    """Yield the URLs that web servers saw more often than the database explains.

    Every request belongs to one grant of one lease, and a grant requests a URL once. So a URL may be requested once for
    each accepted outcome, and once for each grant that held it and expired: its lease ended, or was granted again. A
    URL that a worker hands back was not requested, unless the worker ended within one of `cuts` (from, to): an ending
    worker cuts off what is in flight.
    """
    seen: dict[str, Counter[LeaseTurn]] = {}
    for turn in crawl.turns:
        if turn.turn is not LeaseTurn.HANDED_BACK or any(begun <= turn.at_ns <= over for begun, over in cuts):
            seen.setdefault(turn.url, Counter())[turn.turn] += 1
    own = (exchange for exchange in log if exchange.user_agent == crawl.agent)
    for url, times in sorted(log_judge.requested(own).items()):
        explained = seen.get(url, Counter())
        if times > explained.total() and not url.endswith("/robots.txt"):
            what = ", ".join(f"{turn.name.lower()} {explained[turn]}" for turn in LeaseTurn)
            yield f"{crawl.name}: {url} was requested {times} times ({what})"


CUT_NS = 25_000_000_000
"""How long after a worker was ended in good order the owner may still apply what it handed back."""


def _records(history: History) -> Iterator[Violation]:
    for crawl in history.crawls:
        for page in crawl.pages:
            found = history.records.get((page.segment, page.offset))
            if found != page.url:
                yield Violation(
                    Promise.LOST, f"{crawl.name}: the record of {page.url} at {page.segment}:{page.offset} is {found}"
                )


def impolite(history: History, *, after_stop: bool) -> Iterator[str]:
    """Requests that came sooner than the delay after a response of their host ended; the evidence of each.

    `after_stop`: those of the documented limit instead, which began just after a stopped worker went on: it may have
    been stopped between its last look at the clock and the call that sends.
    """
    for host in log_judge.hosts(history.exchanges):
        exchanges = log_judge.of_host(history.exchanges, host)
        if not exchanges:
            continue
        ended_ns = exchanges[0].ended_ns
        for before, after in pairwise(exchanges):
            ended_ns = max(ended_ns, before.ended_ns)
            gap_s = (after.begun_ns - ended_ns) * _NS
            if gap_s < history.delay_s and _after_a_stop(history, after) is after_stop:
                yield f"{host}{after.path} {gap_s:.4f} s after the end of a response"


def parts(history: History, shared: SharedPeriod) -> dict[str, float]:
    """Return which part of the time that all of the crawls used each of them used, by its User-Agent.

    A request uses its own time and the rest that its crawl's delay asks for afterwards.
    """
    delays = {crawl.agent: crawl.delay_s for crawl in shared.crawls}
    used = dict.fromkeys(delays, 0.0)
    requests = 0
    for exchange in history.exchanges:
        if exchange.user_agent in used and shared.from_ns <= exchange.begun_ns < shared.to_ns:
            requests += 1
            used[exchange.user_agent] += (exchange.ended_ns - exchange.begun_ns) * _NS + delays[exchange.user_agent]
    if requests < LEAST_SHARED:
        raise TooLittleTraffic(f"{requests} requests shared {shared.what}")
    return {agent: time_s / sum(used.values()) for agent, time_s in used.items()}


def unfair(history: History, shared: SharedPeriod) -> Iterator[str]:
    """Yield the crawls whose part of the time is not the part of their weight.

    It may be off by a tenth of itself, and by what one shard and a half take of the span: crawls take turns by shards.
    """
    weights = sum(crawl.weight for crawl in shared.crawls)
    used = parts(history, shared)
    for crawl in shared.crawls:
        part, wanted = used[crawl.agent], crawl.weight / weights
        if abs(part - wanted) > UNFAIR * wanted + TURN_S / ((shared.to_ns - shared.from_ns) * _NS):
            yield f"{crawl.agent} used {part:.0%} of {shared.what}, by its weight {wanted:.0%}"


UNFAIR = 0.1
TURN_S = 15.0
"""What crawls that share take turns by: shards of 10 s, and what begins or ends within the span."""
LEAST_SHARED = 50


def _buried(history: History) -> Iterator[Violation]:
    """Compare what cannot be read with the dead letters: the same, each as often. A store that was put back holds
    again what owners had buried, and is read from its start: then a letter may be buried more often."""
    again = any(round.fault.kind is FaultKind.PUT_BACK for round in history.rounds)
    unreadable, buried = Counter(history.unreadable), Counter(history.buried)
    for letter in sorted((unreadable | buried).keys()):
        more = again and 0 < unreadable[letter] < buried[letter]
        if unreadable[letter] != buried[letter] and not more:
            said = f"{letter[:20].hex()} ({len(letter)} bytes)"
            evidence = f"{said} was published {unreadable[letter]} times and is {buried[letter]} dead letters"
            yield Violation(Promise.BURIED, evidence)
    noise, shards = set(history.noise), set(history.buried_shards)
    for shard in sorted(noise - shards):
        yield Violation(Promise.BURIED, f"the shard {shard[:20].hex()} cannot be read and is no dead letter")
    for shard in sorted(shards - noise):
        yield Violation(Promise.BURIED, f"the shard {shard[:20].hex()} was an owner's, and is a dead letter")


def _after_a_stop(history: History, exchange: Exchange) -> bool:
    return any(0 <= exchange.begun_ns - went_on_ns < SENDING_NS for went_on_ns in history.went_on_ns)


SENDING_NS = 50_000_000
"""How soon after its SIGCONT a worker's call to send, which had begun before, must have ended."""


def _owners(history: History) -> Iterator[Violation]:
    """Fences of a partition, in the order of their commits: terms never fall, and a term is one member's."""
    terms: dict[int, int] = {}
    whose: dict[tuple[int, int], str] = {}
    for fence in history.fences:
        if fence.term < terms.get(fence.partition, 0):
            yield Violation(
                Promise.TWO_OWNERS,
                f"{fence.member} wrote partition {fence.partition} under term {fence.term}"
                f" after term {terms[fence.partition]}",
            )
        terms[fence.partition] = max(fence.term, terms.get(fence.partition, 0))
        first = whose.setdefault((fence.partition, fence.term), fence.member)
        if first != fence.member:
            yield Violation(
                Promise.TWO_OWNERS,
                f"{first} and {fence.member} wrote partition {fence.partition} under term {fence.term}",
            )


def _writes(history: History) -> Iterator[Violation]:
    fenced = {fence.xid for fence in history.fences}
    for write in history.writes:
        if write.xid not in fenced:
            yield Violation(Promise.STALE_WRITE, f"{write.member} wrote {write.relation} without a fence ({write.xid})")
    for lease in history.leases:
        if lease.term != lease.owner_term:
            yield Violation(
                Promise.STALE_WRITE,
                f"a lease of partition {lease.partition} under term {lease.term} while {lease.owner_term} owned it",
            )
