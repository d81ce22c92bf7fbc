"""Every rule that applies to a URL now, in the order in which it meets them, and what each says. Pure.

The first that does not allow it is why it is not fetched now. What keeps a URL out for good (scope, robots, that it was
fetched already) comes before what only makes it wait.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import assert_never

from shared.domain.crawl import CrawlSpec, user_agent
from shared.domain.crawl_state import COMPLETE, Standing
from shared.domain.explain import HELD, REOPENS, counted, given_again, meaning, moment, why_unknown
from shared.domain.frontier import CrawlState, UrlState
from shared.domain.ledger import Counters
from shared.domain.politeness import host_delay
from shared.domain.robots import TOO_COSTLY, AllowAll, RobotsRecord, Rules, Unreachable, policy_of, product_token
from shared.domain.scope import CompiledScope
from shared.domain.software import VERSION
from shared.domain.spec_rules import refused_pattern
from shared.domain.url import Location, host_of
from shared.domain.views import HostView, UrlView


@dataclass(frozen=True, slots=True)
class Ruling:
    """What one rule says. Not allowed: it keeps the URL from being fetched now, or for good."""

    rule: str
    allowed: bool
    detail: str


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What holds around a URL: its crawl, its host (None: no crawl has met it), the shared record of its robots.txt
    (None: no worker has fetched it lately), how many workers of the crawl's pool live and take work, and why nothing is
    sent out for want of room (None: there is room). `regained_s`: after which what is with a worker that died is given
    out again. `others`: other crawls with URLs of the host out. `visits`, `busy`: visits that the
    pool's workers can hold, and hold."""

    standing: Standing
    active_ms: int
    counters: Counters
    host: HostView | None
    robots: RobotsRecord | None
    workers: int
    held: str | None = None
    regained_s: float = 60.0
    others: tuple[str, ...] = ()
    visits: int = 0
    busy: int = 0


def rulings(
    asked: str, location: Location, view: UrlView | None, spec: CrawlSpec, around: Circumstances, now_ms: int
) -> list[Ruling]:
    """What each rule says of the URL at `location`, which was `asked` for in some spelling."""
    found = [_canonical(asked, location), *_scope(location, view, spec, around)]
    if view is not None:
        found.append(_state(view, now_ms))
    found += [
        _robots(location.url, spec, around.robots, now_ms),
        _crawl(spec, around.standing),
        _budget(spec, around),
        _pool(spec.pool, around.workers),
        _room(around.held),
    ]
    if around.host is not None and around.others and not around.host.leased:
        found.append(_turn(around.host, around.others))
    if around.host is not None:
        found += _host(spec, around.host, around.regained_s, now_ms)
    if 0 < around.visits <= around.busy and (around.host is None or not around.host.leased):
        # Last: it is the reason only if nothing else keeps the URL from being sent out.
        found.append(_capacity(spec, around))
    return found


def why_not_now(found: list[Ruling]) -> str | None:
    """What the first rule says that does not allow it."""
    return next((ruling.detail for ruling in found if not ruling.allowed), None)


def _canonical(asked: str, location: Location) -> Ruling:
    same = asked == location.url
    return Ruling("canonical", True, "it is in canonical form" if same else f"it is the same URL as {location.url}")


def _scope(location: Location, view: UrlView | None, spec: CrawlSpec, around: Circumstances) -> Iterator[Ruling]:
    """A URL is judged when it is found; only of one that is not there, or was kept out, the rules are asked again."""
    if view is not None and view.state is not UrlState.EXCLUDED:
        found = f"found on {view.chain[0]}" if view.chain else "a seed"
        yield Ruling("scope", True, f"it was in scope when it was found: {found}, at depth {view.depth}")
        return
    if view is None:
        _, verdicts = why_unknown(location.url, spec, host_known=around.host is not None)
    else:
        via = host_of(view.chain[0]) if view.chain else None
        redirected = view.depth == 0 and view.hops > 0
        verdicts = CompiledScope(spec).explain(
            location.url, location.host, depth=view.depth, via_host=via, via_seed_redirect=redirected, hops=view.hops
        )
    for verdict in verdicts:
        yield Ruling(verdict.rule.value, verdict.allowed, verdict.detail)


def _state(view: UrlView, now_ms: int) -> Ruling:
    fetch = view.fetch
    match view.state:
        case UrlState.QUEUED:
            return Ruling("state", True, "it is queued")
        case UrlState.WAITING:
            used = f"{counted(view.attempts, 'attempt')} {'was' if view.attempts == 1 else 'were'} made"
            if view.due_ms > now_ms:
                return Ruling("back_off", False, f"{used}, and the next is due after {moment(view.due_ms)}")
            return Ruling("back_off", True, f"{used}, and the next is due")
        case UrlState.LEASED:
            return Ruling("state", False, "it is with a worker, to be fetched now")
        case UrlState.DONE if fetch is not None and fetch.redirect:
            return Ruling("duplicate", False, f"it was fetched, and is a redirect to {fetch.redirect}")
        case UrlState.DONE:
            at = "" if fetch is None else f" on {moment(fetch.at_ms)}"
            return Ruling("duplicate", False, f"it was fetched{at}, and is fetched once")
        case UrlState.FAILED:
            return Ruling("state", False, f"it failed for good: {meaning(view.reason or 'other').text}")
        case UrlState.EXCLUDED:
            return Ruling("state", False, f"it is excluded: {meaning(view.reason or 'unknown').text}")
        case never:
            assert_never(never)


def _robots(url: str, spec: CrawlSpec, record: RobotsRecord | None, now_ms: int) -> Ruling:
    if not spec.politeness.obey_robots:
        return Ruling("robots", True, "robots.txt is disregarded (politeness.obey_robots)")
    if record is None:
        return Ruling("robots", True, "its robots.txt is not fetched yet, or not lately: the next visit does it first")
    known = f"robots.txt of {moment(record.fetched_at_ms)}" + ("" if record.fresh(now_ms) else ", to be fetched anew")
    match policy_of(record):
        case AllowAll(reason):
            return Ruling("robots", True, f"{known}: everything is allowed ({reason})")
        case Unreachable(reason):
            return Ruling("robots", False, f"{known} cannot be read ({reason}): the host is left alone")
        case Rules(rules):
            agent = product_token(user_agent(spec, VERSION))
            if rules.of(agent).too_costly:
                return Ruling("robots", False, f"{known} cannot be used ({TOO_COSTLY}): the host is left alone")
            allowed = rules.allows(url, agent)
            line = rules.deciding_line(url, agent)
            if line is not None:
                said = f"line {line.number} decides for {agent}: {line.text!r}, in the group of {line.group}"
            else:
                said = f"no rule of it keeps {agent} out" if allowed else f"a rule of it keeps {agent} out"
            return Ruling("robots", allowed, f"{known}: {said}")
        case never:
            assert_never(never)


def _crawl(spec: CrawlSpec, standing: Standing) -> Ruling:
    held = HELD.get(standing.state)
    if held is None and (refused := refused_pattern(spec.scope, spec.extract)) is not None:
        return Ruling("crawl", False, f"nothing is sent out before the crawl has another spec: {refused}")
    if held is None:
        return Ruling("crawl", True, f"the crawl is {standing.state}")
    if standing.state is CrawlState.FINISHED and standing.reason == COMPLETE:
        held = REOPENS
    ended = f" ({standing.reason})" if standing.reason else ""
    return Ruling("crawl", False, f"the crawl is {standing.state}{ended}: {held}")


def _budget(spec: CrawlSpec, around: Circumstances) -> Ruling:
    budget, counters = spec.budget, around.counters
    spent = (
        ("max_pages", budget.max_pages, counters.pages, "pages"),
        ("max_bytes", budget.max_bytes, counters.bytes, "bytes"),
        ("max_seconds", budget.max_seconds, around.active_ms // 1000, "seconds of work"),
    )
    for name, limit, used, what in spent:
        if limit is not None and used >= limit:
            return Ruling("budget", False, f"budget.{name} is spent: {used} of {limit} {what}")
    said = [f"{used} of {limit} {what}" for _, limit, used, what in spent if limit is not None]
    return Ruling("budget", True, ", ".join(said) or "the crawl has no budget")


def _pool(pool: str, workers: int) -> Ruling:
    if not workers:
        return Ruling("pool", False, f"no worker of the pool {pool!r} lives and takes work")
    return Ruling("pool", True, f"workers of the pool {pool!r} that take work: {workers}")


def _room(held: str | None) -> Ruling:
    if held is not None:
        return Ruling("room", False, f"nothing is sent out until there is room: {held}")
    return Ruling("room", True, "there is room for what comes of it")


def _capacity(spec: CrawlSpec, around: Circumstances) -> Ruling:
    said = f"all {around.visits} visits of the pool {spec.pool!r} are in use"
    return Ruling("capacity", False, f"{said}: it waits for one that becomes free, by its weight ({spec.weight})")


def _turn(host: HostView, others: tuple[str, ...]) -> Ruling:
    names = ", ".join(others)
    return Ruling("turn", False, f"it is another crawl's turn on {host.host}: {names} has URLs of it out with workers")


def _host(spec: CrawlSpec, host: HostView, regained_s: float, now_ms: int) -> Iterator[Ruling]:
    limit = spec.budget.max_pages_per_host
    if limit is not None:
        said = f"{host.host} has given {host.pages} of {limit} pages (budget.max_pages_per_host)"
        yield Ruling("host_budget", host.pages < limit, said)
    if host.blocked_until_ms > now_ms:
        cause = f", after {counted(host.failures, 'failure')} ({host.last_failure})" if host.last_failure else ""
        yield Ruling("blocked", False, f"{host.host} is left alone until {moment(host.blocked_until_ms)}{cause}")
    else:
        yield Ruling("blocked", True, f"{host.host} is not blocked")
    delay_s = host_delay(
        spec.politeness,
        crawl_delay_s=host.crawl_delay_ms / 1000 or None,
        last_fetch_s=host.latency_ms / 1000 or None,
        operator_delay_s=host.operator_delay_ms / 1000,
        slowed_s=host.slowed_ms / 1000,
    )
    pace = f"is asked at most every {delay_s:g} s" if delay_s else "has no delay"
    said = f"{host.host} {pace}; {counted(host.queued, 'URL')} queued"
    if host.leased:
        said += f", {host.leased} out with workers now: {given_again(regained_s)}"
    yield Ruling("delay", True, said)
