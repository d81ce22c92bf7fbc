"""Check every rule that applies to a URL now, in the order in which the rules are applied. The module does no I/O.

The first rule that does not allow the URL is the reason why it is not fetched now. Rules that exclude a URL permanently
(scope, robots, already fetched) come before rules that only make it wait.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, assert_never

from shared.domain.crawl.host_specs import compiled_scope, deciding, override_of, spec_for
from shared.domain.crawl.scope_change import extra_of_page, judge_found
from shared.domain.crawl.spec import CrawlSpec, user_agent
from shared.domain.crawl.spec_rules import refused_pattern
from shared.domain.crawl.state import COMPLETE, CrawlStatus
from shared.domain.explain.sentences import (
    HELD,
    KINDS,
    REOPENS,
    counted,
    found_on,
    given_again,
    interval_of,
    meaning,
    moment,
    policy_block,
    priority_of,
    why_unknown,
)
from shared.domain.frontier.page_history import GONE, MISSES_TO_GONE, QUIET
from shared.domain.frontier.politeness import host_delay
from shared.domain.frontier.states import CrawlState, UrlKind, UrlState, kind_flags
from shared.domain.frontier.store_model import Counters
from shared.domain.reads.views import HostView, UrlView
from shared.domain.software import VERSION
from shared.domain.web.robots import TOO_COSTLY, AllowAll, RobotsRecord, Rules, Unreachable, policy_of, product_token
from shared.domain.web.url import Location, host_of


@dataclass(frozen=True, slots=True)
class RuleCheck:
    """The result of one rule for a URL. `detail`: how the rule applies to the URL, in words.

    If `allowed` is False, the rule prevents a fetch of the URL, at present or permanently.
    """

    rule: str
    allowed: bool
    detail: str


@dataclass(frozen=True, slots=True)
class ExplainContext:
    """What `rule_checks` needs besides the URL and the spec.

    - `standing`, `active_ms`, `counters`: the status, active time and counters of the URL's crawl.
    - `host`: what the crawl has stored of the URL's host, None if it has no URL of this host.
    - `robots`: the stored record of the host's robots.txt, None if no worker has fetched it lately.
    - `workers`: how many live workers of the crawl's pool accept work.
    - `held`: the resource pressure that stops dispatch, None if there is none.
    - `regained_s`: seconds after which the URLs of a dead worker are dispatched again.
    - `others`: the names of other crawls that have leased URLs of this host now.
    - `visits`, `busy`: how many visits the pool's workers can have at once, and how many they have now.
    - `ahead`: the setting `master.dispatch_ahead_ratio` of the hot configuration: how many shards are dispatched for
      each visit that the workers have free. None: not configured.
    - `excluded`: a text with the exclusion that covers the URL and its reason. None if no exclusion covers it.
    - `revision`: the revision of the crawl's spec.
    - `rediscovering`: how many partitions still read the links of stored pages for a wider scope.
    """

    standing: CrawlStatus
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
    ahead: float | None = None
    excluded: str | None = None
    revision: int = 1
    rediscovering: int = 0


def rule_checks(
    asked: str, location: Location, view: UrlView | None, spec: CrawlSpec, around: ExplainContext, now_ms: int
) -> list[RuleCheck]:
    """Return the result of each rule for a URL, in the order in which the rules are applied.

    `asked`: the URL as the user wrote it. `location`: its canonical form. `view`: the stored facts of the URL, None if
    the crawl does not know it. `around`: the state of the crawl and the cluster.
    """
    checks = [_canonical(asked, location), _exclusion(around.excluded), *_scope(location, view, spec, around)]
    if (override := override_of(spec, location.host)) is not None:
        checks.append(RuleCheck("override", True, f"{override} of the spec applies to {location.host}"))
    if (priority := priority_of(location.url, view, spec)) is not None:
        checks.append(RuleCheck("priority", True, priority))
    if view is not None:
        checks.append(_state(view, spec, now_ms))
    if around.rediscovering:
        checks.append(_rediscovery(around.rediscovering, known=view is not None))
    checks += [
        _robots(location, spec, around.robots, now_ms),
        _crawl(spec, around.standing),
        _budget(spec, around, requisite=view is not None and view.kind is UrlKind.REQUISITE),
        _pool(spec.pool, around.workers),
        _resource_pressure(around.held),
    ]
    if around.host is not None and around.others and not around.host.leased:
        checks.append(_turn(around.host, around.others))
    if around.host is not None:
        checks += _host(spec, around.host, around.regained_s, now_ms)
    if around.host is None or not around.host.leased:
        # This check is the last: it is the reason only if no other rule keeps the URL from being dispatched.
        checks += _capacity(spec, around)
    return checks


def blocking_reason(checks: list[RuleCheck]) -> str | None:
    """Return why the URL is not fetched now: the detail of the first check that does not allow it.

    Return None if all checks allow it.
    """
    return next((check.detail for check in checks if not check.allowed), None)


def _canonical(asked: str, location: Location) -> RuleCheck:
    same = asked == location.url
    return RuleCheck("canonical", True, "it is in canonical form" if same else f"it is the same URL as {location.url}")


def _exclusion(excluded: str | None) -> RuleCheck:
    return RuleCheck("exclusion", excluded is None, "no exclusion covers it" if excluded is None else excluded)


def _scope(location: Location, view: UrlView | None, spec: CrawlSpec, around: ExplainContext) -> Iterator[RuleCheck]:
    """Yield the results of the rules of the scope for a URL.

    Yield one check for each rule of the present scope if the URL is unknown, is excluded, or is queued but now out of
    scope. For any other URL yield a single check, which allows it and says how it was found.
    """
    if view is None:
        _, verdicts = why_unknown(location.url, spec, host_known=around.host is not None)
        yield from (RuleCheck(verdict.rule.value, verdict.allowed, verdict.detail) for verdict in verdicts)
        return
    checks = _found_scope(location, view, spec, around.revision)
    if view.state is UrlState.EXCLUDED or (view.state in _IN_QUEUE and not all(check.allowed for check in checks)):
        yield from checks
        return
    found = found_on(view)
    unit = "hop" if view.extra_hops == 1 else "hops"
    place = f"{view.extra_hops} {unit} beyond the scope (scope.extra_hops)" if view.extra_hops else "in scope"
    yield RuleCheck("scope", True, f"it was {place} when it was found: {found}, at depth {view.depth}")


_IN_QUEUE: Final = (UrlState.QUEUED, UrlState.WAITING)


def _found_scope(location: Location, view: UrlView, spec: CrawlSpec, revision: int) -> list[RuleCheck]:
    """Return the results of the rules of the present scope for a URL that was found earlier.

    The detail of a rule that excludes the URL names the revision of the spec.
    """
    scope, via = compiled_scope(spec), host_of(view.chain[0]) if view.chain else None
    of = f" (revision {revision} of the spec)"
    if view.kind.listing or view.kind is UrlKind.REQUISITE:
        rule = None
        if scope.problem is None:
            rule = judge_found(
                scope,
                location.url,
                location.host,
                depth=view.depth,
                hops=view.hops,
                flags=kind_flags(view.kind),
                via_host=via,
            )
        if rule is not None:
            return [RuleCheck(rule.name.value, False, rule.detail + of)]
        if view.kind is UrlKind.REQUISITE:
            return [RuleCheck("scope", True, f"it is {found_on(view)}, by scope.requisites: {spec.scope.requisites}")]
        return [RuleCheck("scope", True, f"it is {KINDS[view.kind]}, which no pattern of the scope applies to")]
    redirected = view.depth == 0 and view.hops > 0
    verdicts = scope.explain(
        location.url,
        location.host,
        depth=view.depth,
        via_host=via,
        via_seed_redirect=redirected,
        hops=view.hops,
        extra=extra_of_page(view.extra_hops, view.hops),
    )
    return [
        RuleCheck(each.rule.value, each.allowed, each.detail if each.allowed else each.detail + of) for each in verdicts
    ]


def _state(view: UrlView, spec: CrawlSpec, now_ms: int) -> RuleCheck:
    fetch = view.fetch
    match view.state:
        case UrlState.QUEUED:
            return RuleCheck("state", True, "it is queued")
        case UrlState.WAITING if view.history is not None and not view.attempts:
            when = "is due" if view.due_ms <= now_ms else f"is due on {moment(view.due_ms)}"
            known = "it is a sitemap or feed" if view.is_recrawled_listing else "its page is stored"
            detail = f"{known}, and its next fetch {when}: {interval_of(view, spec)}"
            return RuleCheck("recrawl", view.due_ms <= now_ms, detail)
        case UrlState.WAITING:
            used = f"{counted(view.attempts, 'attempt')} {'was' if view.attempts == 1 else 'were'} made"
            if view.due_ms > now_ms:
                return RuleCheck("back_off", False, f"{used}, and the next is due after {moment(view.due_ms)}")
            return RuleCheck("back_off", True, f"{used}, and the next is due")
        case UrlState.LEASED:
            return RuleCheck("state", False, "it is with a worker, to be fetched now")
        case UrlState.DONE if fetch is not None and fetch.redirect:
            return RuleCheck("duplicate", False, f"it was fetched, and is a redirect to {fetch.redirect}")
        case UrlState.DONE if view.reason == GONE:
            return RuleCheck("duplicate", False, f"its page is gone: {MISSES_TO_GONE} fetches in a row found none")
        case UrlState.DONE if view.reason == QUIET:
            return RuleCheck("duplicate", False, "it is read no more: its last fetches found nothing new")
        case UrlState.DONE:
            at = "" if fetch is None else f" on {moment(fetch.at_ms)}"
            return RuleCheck("duplicate", False, f"it was fetched{at}, and each URL is fetched once")
        case UrlState.FAILED:
            return RuleCheck("state", False, f"it failed for good: {meaning(view.reason or 'other').text}")
        case UrlState.EXCLUDED:
            return RuleCheck("state", False, f"it is excluded: {meaning(view.reason or 'unknown').text}")
        case never:
            assert_never(never)


def _rediscovery(partitions: int, *, known: bool) -> RuleCheck:
    reads = f"the links of stored pages are read again for a wider scope, in {counted(partitions, 'partition')}"
    return RuleCheck("rediscover", True, reads if known else f"{reads}: it may still be found there")


def _robots(location: Location, spec: CrawlSpec, record: RobotsRecord | None, now_ms: int) -> RuleCheck:
    url = location.url
    if spec.robots.ignored_for(location.host):
        return RuleCheck("robots", True, f"robots.txt of {location.host} is ignored (robots.ignore_for)")
    if not spec.politeness.obey_robots:
        return RuleCheck("robots", True, "robots.txt is ignored (politeness.obey_robots)")
    if record is None:
        return RuleCheck(
            "robots", True, "its robots.txt was not fetched yet, or not recently: the next visit fetches it first"
        )
    known = f"robots.txt of {moment(record.fetched_at_ms)}" + ("" if record.fresh(now_ms) else ", to be fetched again")
    match policy_of(record):
        case AllowAll(reason):
            return RuleCheck("robots", True, f"{known}: everything is allowed ({reason})")
        case Unreachable(reason):
            return RuleCheck("robots", False, f"{known} cannot be read ({reason}): the host is left alone")
        case Rules(rules):
            agent = product_token(user_agent(spec, VERSION))
            if rules.of(agent).too_costly:
                return RuleCheck("robots", False, f"{known} cannot be used ({TOO_COSTLY}): the host is left alone")
            allowed = rules.allows(url, agent)
            line = rules.deciding_line(url, agent)
            if line is not None:
                detail = f"line {line.number} decides for {agent}: {line.text!r}, in the group of {line.group}"
            else:
                detail = f"no rule excludes {agent}" if allowed else f"a rule excludes {agent}"
            return RuleCheck("robots", allowed, f"{known}: {detail}")
        case never:
            assert_never(never)


def _crawl(spec: CrawlSpec, standing: CrawlStatus) -> RuleCheck:
    held = HELD.get(standing.state)
    refused = refused_pattern(spec.scope, spec.extract, spec.recrawl, spec.priority, spec.overrides)
    if held is None and refused is not None:
        return RuleCheck("crawl", False, f"no URL is dispatched until the crawl has another spec: {refused}")
    if held is None:
        return RuleCheck("crawl", True, f"the crawl is {standing.state}")
    if standing.state is CrawlState.FINISHED and standing.reason == COMPLETE:
        held = REOPENS
    ended = f" ({standing.reason})" if standing.reason else ""
    return RuleCheck("crawl", False, f"the crawl is {standing.state}{ended}: {held}")


def _budget(spec: CrawlSpec, around: ExplainContext, *, requisite: bool) -> RuleCheck:
    budget, counters = spec.budget, around.counters
    spent = (
        ("max_pages", budget.max_pages, counters.pages, "pages"),
        ("max_bytes", budget.max_bytes, counters.bytes, "bytes"),
        ("max_seconds", budget.max_seconds, around.active_ms // 1000, "seconds of work"),
    )
    for name, limit, used, what in spent:
        if limit is not None and used >= limit:
            if requisite and name == "max_pages":
                return RuleCheck("budget", True, "budget.max_pages is spent for pages: requisites go on")
            if spec.recrawl.used and name != "max_seconds":
                return RuleCheck("budget", True, f"budget.{name} is spent for new URLs: stored pages go on")
            return RuleCheck("budget", False, f"budget.{name} is spent: {used} of {limit} {what}")
    limits = [f"{used} of {limit} {what}" for _, limit, used, what in spent if limit is not None]
    return RuleCheck("budget", True, ", ".join(limits) or "the crawl has no budget")


def _pool(pool: str, workers: int) -> RuleCheck:
    if not workers:
        return RuleCheck("pool", False, f"no live worker of the pool {pool!r} accepts work")
    return RuleCheck("pool", True, f"workers of the pool {pool!r} that accept work: {workers}")


def _resource_pressure(held: str | None) -> RuleCheck:
    if held is not None:
        return RuleCheck("resource_pressure", False, f"no URL is dispatched under resource pressure: {held}")
    return RuleCheck("resource_pressure", True, "no resource is nearly full")


def _capacity(spec: CrawlSpec, around: ExplainContext) -> Iterator[RuleCheck]:
    free = around.visits - around.busy
    if around.visits and free <= 0:
        in_use = f"all {around.visits} visits of the pool {spec.pool!r} are in use"
        yield RuleCheck("capacity", False, f"{in_use}: it waits for a free one, by its weight ({spec.weight})")
    elif around.visits and around.ahead is not None and int(around.ahead * free) == 0:
        ratio = f"master.dispatch_ahead_ratio is {around.ahead:g} in the configuration"
        yield RuleCheck("capacity", False, f"nothing is dispatched for the {free} free visits of the pool: {ratio}")


def _turn(host: HostView, others: tuple[str, ...]) -> RuleCheck:
    names = ", ".join(others)
    return RuleCheck("turn", False, f"it is another crawl's turn on {host.host}: {names} has URLs of it with workers")


def _host(spec: CrawlSpec, host: HostView, regained_s: float, now_ms: int) -> Iterator[RuleCheck]:
    own = spec_for(spec, host.host)
    limit = own.budget.max_pages_per_host
    if limit is not None:
        place = deciding(spec, host.host, "max_pages_per_host") or "budget.max_pages_per_host"
        detail = f"{host.host} has given {host.pages} of {limit} pages ({place})"
        yield RuleCheck("host_budget", host.pages < limit, detail)
    if host.operator_blocked_until_ms > max(now_ms, host.blocked_until_ms):
        yield RuleCheck("blocked", False, f"the policy of {host.host} blocks it {policy_block(host)}")
    elif host.blocked_until_ms > now_ms:
        cause = f", after {counted(host.failures, 'failure')} ({host.last_failure})" if host.last_failure else ""
        yield RuleCheck("blocked", False, f"{host.host} is left alone until {moment(host.blocked_until_ms)}{cause}")
    else:
        yield RuleCheck("blocked", True, f"{host.host} is not blocked")
    delay_s = host_delay(
        own.politeness,
        crawl_delay_s=host.crawl_delay_ms / 1000 or None,
        last_fetch_s=host.latency_ms / 1000 or None,
        operator_delay_s=host.operator_delay_ms / 1000,
        slowed_s=host.slowed_ms / 1000,
    )
    pace = f"is asked at most every {delay_s:g} s" if delay_s else "has no delay"
    if delay_s == own.politeness.delay_s and (decided := deciding(spec, host.host, "delay_s")) is not None:
        pace += f" ({decided})"
    if host.operator_delay_ms and delay_s == host.operator_delay_ms / 1000:
        pace += " (its host policy)"
    if host.operator_slots:
        pace += f", with at most {counted(host.operator_slots, 'shard')} out at a time (its host policy)"
    detail = f"{host.host} {pace}; {counted(host.queued, 'URL')} queued"
    if host.leased:
        detail += f", {host.leased} with workers now: {given_again(regained_s)}"
    yield RuleCheck("delay", True, detail)
