"""Check what a crawl spec's types cannot express: rules between fields, and rules about the text in them."""

import re
from collections.abc import Iterator, Sequence
from typing import Final
from urllib.parse import urlsplit

import msgspec

from shared.domain.crawl.item_rules import ItemField, ItemRule
from shared.domain.crawl.media_spec import Media, media_type_problem
from shared.domain.crawl.override_spec import VALUES, Override
from shared.domain.crawl.patterns import pattern_problem, size_problem
from shared.domain.crawl.priority_rules import PriorityRule
from shared.domain.crawl.recrawl_spec import Recrawl, RecrawlPolicy, RecrawlRule
from shared.domain.crawl.requisites_spec import Requisites
from shared.domain.crawl.robots_spec import Robots, host_problem
from shared.domain.crawl.selectors import selector_problem
from shared.domain.crawl.spec import CrawlSpec, Egress, Extract, Fetch, Politeness, Retry, Scope, Seed
from shared.domain.frontier.seed_contexts import context_problem, problems_of
from shared.domain.ops.egress import network_problem
from shared.domain.suggestions import url_meant
from shared.domain.web.url import canonicalize, scheme_of, with_scheme

_BROWSERS: Final = "Chrome", "Chromium", "CriOS", "Edg", "Edge", "Firefox", "FxiOS", "MSIE", "OPR", "Opera", "Safari"
"""Product names by which servers recognize a browser."""

_CRAWLERS: Final = (
    *("AdsBot-Google", "AhrefsBot", "Amazonbot", "anthropic-ai", "APIs-Google", "Applebot", "archive.org_bot"),
    *("Baiduspider", "bingbot", "BingPreview", "Bytespider", "CCBot", "ChatGPT-User", "ClaudeBot", "Claude-Web"),
    *("DataForSeoBot", "Discordbot", "DotBot", "DuckDuckBot", "Exabot", "facebookexternalhit", "FacebookBot"),
    *("FeedFetcher-Google", "Google-Extended", "Google-InspectionTool", "Googlebot", "Googlebot-Image"),
    *("Googlebot-News", "Googlebot-Video", "GoogleOther", "GPTBot", "ia_archiver", "LinkedInBot"),
    *("Mediapartners-Google", "meta-externalagent", "MJ12bot", "msnbot", "OAI-SearchBot", "PerplexityBot", "PetalBot"),
    *("Pinterestbot", "SemrushBot", "SeznamBot", "Slackbot", "Slurp", "Sogou", "Storebot-Google", "TelegramBot"),
    *("Twitterbot", "UptimeRobot", "WhatsApp", "YandexBot", "YandexImages"),
)
"""Tokens that well-known crawlers have published, so that servers and robots.txt can recognize them."""

_CRAWLER: Final = re.compile(
    rf"(?<![A-Za-z0-9_-])({'|'.join(map(re.escape, _CRAWLERS))})(?![A-Za-z0-9_-])", re.IGNORECASE
)
_BROWSER: Final = re.compile(rf"(?<![A-Za-z0-9_-])({'|'.join(_BROWSERS)})[/ ][0-9]", re.IGNORECASE)
_MOZILLA: Final = re.compile(r"(?<![A-Za-z0-9_-])(Mozilla)/", re.IGNORECASE)
_COMPATIBLE: Final = re.compile(r"\(compatible;\s*[^\s;)/]+/", re.IGNORECASE)


def impersonated(user_agent: str) -> str | None:
    """Return how a User-Agent pretends to be another crawler or a browser, such as "names a browser (Chrome)".

    Return None if it does not. `Mozilla/5.0 (compatible; NAME/1.0)` is allowed, because many crawlers use this form.
    """
    if (crawler := _CRAWLER.search(user_agent)) is not None:
        return f"names another crawler ({crawler[1]})"
    browser = _BROWSER.search(user_agent)
    if browser is None and _COMPATIBLE.search(user_agent) is None:
        browser = _MOZILLA.search(user_agent)
    return None if browser is None else f"names a browser ({browser[1]})"


_SYNTAX: Final = "patterns have the syntax of RE2, see docs/crawls.md"

_CREDENTIALS: Final = frozenset({"authorization", "proxy-authorization", "cookie"})
_NO_CREDENTIALS: Final = (
    "is a credential: the crawl would send it to every host, store it in the archive and show it to every viewer",
    "leave it out; a spec cannot hold credentials, and sites that need them cannot be crawled yet",
)
_OWN_NAME: Final = "name your own, such as mybot/1.0 (+https://example.org/bot), or leave it out and set fetch.contact"
_PROXY_ADVICE: Final = "every viewer of the crawl would see it; use a proxy that admits the workers by their addresses"
PROXY_SCHEMES: Final = ("http", "https", "socks5", "socks5h")

_USERINFO: Final = re.compile(r"//[^/?#]*@").search
_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+").fullmatch
_OURS: Final = {
    "user-agent": "set fetch.user_agent instead",
    **dict.fromkeys(
        ("host", "connection", "content-length", "transfer-encoding", "te", "upgrade"), "it frames the request"
    ),
    **dict.fromkeys(("if-none-match", "if-modified-since", "range"), "the crawler sets it by itself"),
    "accept-encoding": "the crawler asks for what it can decode",
}


class SpecProblem(msgspec.Struct, frozen=True):
    """One problem of a spec, for the author of the spec.

    `path`: where it is, such as `scope.include[2]`, empty for the whole spec. `message`: what is wrong. `hint`: what to
    do, empty if unknown.
    """

    path: str
    message: str
    hint: str = ""

    def __str__(self) -> str:
        place = f"{self.path}: " if self.path else ""
        return place + self.message + (f" ({self.hint})" if self.hint else "")


def checked(part: msgspec.Struct) -> Iterator[SpecProblem]:
    """Check a spec, or one of its sections, beyond the types of its fields. Yield the problems.

    The paths of the problems are relative to `part`. Nested sections are not checked.
    """
    match part:
        case Seed():
            yield from _seed(part)
        case Scope():
            yield from _scope(part)
        case Politeness():
            yield from _politeness(part)
        case Robots():
            yield from _robots(part)
        case Fetch():
            yield from _fetch(part)
        case Extract():
            yield from _extract(part)
        case ItemRule():
            yield from _item_rule(part)
        case ItemField():
            yield from _item_field(part)
        case Retry() if part.max_s < part.base_s:
            yield SpecProblem("max_s", f"is less than base_s, which is {part.base_s:g}")
        case Recrawl():
            yield from _recrawl(part)
        case RecrawlRule() | PriorityRule() if problem := _pattern("match", part.match):
            yield problem
        case Egress():
            yield from _egress(part)
        case Media():
            yield from _media(part)
        case Override():
            yield from _override(part)
        case CrawlSpec():
            yield from _whole(part)
        case _:
            return


def _seed(seed: Seed) -> Iterator[SpecProblem]:
    problems = [SpecProblem(*problem) for problem in problems_of(seed.labels or {}, seed.source or "")]
    yield from problems
    if not problems and (too_large := context_problem(seed.context)):
        yield SpecProblem("", too_large, "shorten its labels or its source")
    if canonicalize(seed.url) is not None:
        return
    if "://" not in seed.url and (guess := canonicalize(with_scheme(seed.url))):
        yield SpecProblem("url", f"{seed.url!r} has no scheme", f"did you mean {guess}?")
    elif "@" in seed.url:
        yield SpecProblem("url", "has a user name or password, or is not a URL", "credentials do not belong in seeds")
    else:
        meant = url_meant(seed.url)
        hint = "" if meant is None else f"did you mean {meant}?"
        yield SpecProblem("url", f"{seed.url!r} is not an http or https URL that can be fetched", hint)


def refused_pattern(
    scope: Scope,
    extract: Extract,
    recrawl: Recrawl | None = None,
    priority: Sequence[PriorityRule] = (),
    overrides: Sequence[Override] = (),
) -> str | None:
    """Return why a regular expression in these sections of a spec cannot be used, with its path.

    Return None if all can be used. `parse_spec` refuses a spec with such a pattern, but a stored spec may have been
    accepted by another version.
    """
    for problem in _scope(scope):
        return f"scope.{problem}"
    for problem in _when_sizes(extract):
        return f"extract.{problem}"
    for index, rule in enumerate(extract.items):
        for problem in _rule_patterns(rule):
            return f"extract.items[{index}].{problem}"
    for index, each in enumerate(recrawl.by_pattern if recrawl is not None else ()):
        if refused := _pattern("match", each.match):
            return f"recrawl.by_pattern[{index}].{refused}"
    for index, ranked in enumerate(priority):
        if refused := _pattern("match", ranked.match):
            return f"priority[{index}].{refused}"
    for index, override in enumerate(overrides):
        for problem in _scope(override):
            return f"overrides[{index}].{problem}"
    too_large = _priority_sizes(priority)
    return None if too_large is None else str(too_large)


def _scope(scope: Scope | Override) -> Iterator[SpecProblem]:
    for name in ("include", "exclude"):
        patterns: tuple[str, ...] = getattr(scope, name) or ()
        refused = [_pattern(f"{name}[{index}]", pattern) for index, pattern in enumerate(patterns)]
        problems = [problem for problem in refused if problem is not None]
        yield from problems
        if not problems and (problem := size_problem(patterns)):
            yield SpecProblem(name, f"its patterns {problem}", "shorten their repetitions, or drop some")


def _pattern(path: str, pattern: str, *, unicode: bool = False) -> SpecProblem | None:
    problem = pattern_problem(pattern, unicode=unicode)
    return None if problem is None else SpecProblem(path, f"{pattern!r} {problem}", _SYNTAX)


def _when_sizes(extract: Extract) -> Iterator[SpecProblem]:
    patterns = [rule.when for rule in extract.items if rule.when is not None and pattern_problem(rule.when) is None]
    if problem := size_problem(patterns):
        yield SpecProblem("items", f"the patterns of when {problem}", "shorten their repetitions, or drop some")


def _rule_patterns(rule: ItemRule) -> Iterator[SpecProblem]:
    """Yield the problems of the regular expressions of an item rule and its fields."""
    if rule.when is not None and (problem := _pattern("when", rule.when)):
        yield problem
    for name, field in rule.fields.items():
        for problem in _match(field):
            yield SpecProblem(f"fields.{name}.{problem.path}", problem.message, problem.hint)


def _match(field: ItemField) -> Iterator[SpecProblem]:
    if field.match is not None and (problem := _pattern("match", field.match, unicode=True)):
        yield problem


def _politeness(politeness: Politeness) -> Iterator[SpecProblem]:
    if politeness.adaptive and politeness.max_delay_s < politeness.delay_s:
        yield SpecProblem("max_delay_s", f"is less than delay_s, which is {politeness.delay_s:g}")
    if (politeness.host_slots or 1) > 1 and politeness.delay_s > 0:
        yield SpecProblem(
            "host_slots", "cannot exceed 1 while there is a delay to keep", "set delay_s to 0 or leave it out"
        )


def _override(override: Override) -> Iterator[SpecProblem]:
    for index, entry in enumerate(override.hosts):
        if (problem := host_problem(entry)) is not None:
            yield SpecProblem(f"hosts[{index}]", *problem)
    if not override.values():
        yield SpecProblem("", "overrides no field", f"set at least one of {', '.join(VALUES)}")
    yield from _scope(override)


def _overrides(spec: CrawlSpec) -> Iterator[SpecProblem]:
    first: dict[str, int] = {}
    greatest_s = spec.politeness.max_delay_s
    for number, override in enumerate(spec.overrides):
        for index, host in enumerate(override.hosts):
            if (earlier := first.setdefault(host, number)) != number:
                message = f"{host!r} is in overrides[{earlier}], too, which applies first"
                yield SpecProblem(f"overrides[{number}].hosts[{index}]", message, "name each host once")
        if override.delay_s is None:
            continue
        if spec.politeness.adaptive and override.delay_s > greatest_s:
            message = f"is more than politeness.max_delay_s, which is {greatest_s:g}"
            yield SpecProblem(f"overrides[{number}].delay_s", message)


def _robots(robots: Robots) -> Iterator[SpecProblem]:
    for index, entry in enumerate(robots.ignore_for):
        if (problem := host_problem(entry)) is not None:
            yield SpecProblem(f"ignore_for[{index}]", *problem)


def _fetch(fetch: Fetch) -> Iterator[SpecProblem]:
    for name in ("user_agent", "contact"):
        text = getattr(fetch, name)
        if text is not None and not (text.isascii() and text.isprintable() and text == text.strip()):
            yield SpecProblem(name, "must be printable ASCII without space around it, because it is sent as a header")
    if fetch.user_agent is not None and (why := impersonated(fetch.user_agent)):
        yield SpecProblem("user_agent", f"{why}, and sites must be able to tell crawlers apart", _OWN_NAME)
    if fetch.contact is not None and "://" not in fetch.contact and "@" not in fetch.contact:
        yield SpecProblem("contact", f"{fetch.contact!r} is neither a URL nor a mail address")
    for name, value in fetch.headers.items():
        if not _HEADER_NAME(name):
            yield SpecProblem("headers", f"{name!r} is not a header name")
        elif name.lower() in _CREDENTIALS:
            yield SpecProblem(f"headers.{name}", *_NO_CREDENTIALS)
        elif (why := _OURS.get(name.lower())) is not None:
            yield SpecProblem(f"headers.{name}", "cannot be set", why)
        elif not all(char == "\t" or " " <= char <= "~" or "\x80" <= char <= "\xff" for char in value):
            yield SpecProblem(f"headers.{name}", "has characters that a header cannot carry")
    if fetch.proxy is not None and _USERINFO(fetch.proxy):
        yield SpecProblem("proxy", "must not hold a user name or password", _PROXY_ADVICE)
    elif fetch.proxy is not None and not _is_proxy(fetch.proxy):
        yield SpecProblem(
            "proxy",
            f"is not a proxy's URL of the form {PROXY_SCHEMES[0]}://host:port",
            f"schemes: {', '.join(PROXY_SCHEMES)}",
        )


def _is_proxy(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in PROXY_SCHEMES and bool(parts.hostname) and parts.port != 0 and parts.path in ("", "/")
    except ValueError:
        return False


def _extract(extract: Extract) -> Iterator[SpecProblem]:
    seen: set[str] = set()
    for index, rule in enumerate(extract.items):
        if rule.name in seen:
            yield SpecProblem(f"items[{index}].name", f"{rule.name!r} is the name of an earlier rule")
        seen.add(rule.name)
    if extract.max_item_bytes > extract.max_page_bytes:
        yield SpecProblem("max_item_bytes", f"is more than max_page_bytes, which is {extract.max_page_bytes}")
    yield from _when_sizes(extract)


def _item_rule(rule: ItemRule) -> Iterator[SpecProblem]:
    if rule.when is not None and (refused := _pattern("when", rule.when)):
        yield refused
    if rule.each is not None and (problem := selector_problem(rule.each)):
        yield SpecProblem("each", problem)
    if rule.each is not None and rule.json_ld is not None:
        yield SpecProblem("json_ld", "cannot be combined with each", "split the rule into two")
    if rule.key is not None and rule.key not in rule.fields:
        yield SpecProblem("key", f"{rule.key!r} is not a field of the rule", f"fields: {', '.join(rule.fields)}")
    for name, field in rule.fields.items():
        if field.path is not None and rule.json_ld is None:
            yield SpecProblem(
                f"fields.{name}.path", "is a path into JSON-LD, and the rule has no json_ld", "set json_ld to the @type"
            )
    if rule.key is not None and rule.key in rule.fields and rule.fields[rule.key].all:
        yield SpecProblem(f"fields.{rule.key}.all", "cannot be true for the key field")


def _item_field(field: ItemField) -> Iterator[SpecProblem]:
    sources = [name for name in ("css", "meta", "path") if getattr(field, name) is not None]
    if len(sources) != 1:
        message = f"{' and '.join(sources)} are all set" if sources else "has no source for its value"
        yield SpecProblem("", message, "set exactly one of css, meta, path")
    if field.css is not None and (problem := selector_problem(field.css)):
        yield SpecProblem("css", problem)
    if field.css is None and field.take != "text":
        yield SpecProblem("take", "selects a part of an element, so it needs css")
    if field.path is not None and not all(field.path.split(".")):
        yield SpecProblem("path", f"{field.path!r} has an empty key", "write keys as offers.price")
    yield from _match(field)


def _recrawl(recrawl: Recrawl) -> Iterator[SpecProblem]:
    if recrawl.max_s < recrawl.min_s:
        yield SpecProblem("max_s", f"is less than min_s, which is {recrawl.min_s:g}")
    for index, rule in enumerate(recrawl.by_pattern):
        least = rule.min_s if rule.min_s is not None else recrawl.min_s
        greatest = rule.max_s if rule.max_s is not None else recrawl.max_s
        if greatest < least and (rule.min_s, rule.max_s) != (None, None):
            field = "max_s" if rule.max_s is not None else "min_s"
            yield SpecProblem(f"by_pattern[{index}].{field}", f"leaves {least:g} as min_s and {greatest:g} as max_s")
    patterns = [rule.match for rule in recrawl.by_pattern]
    if not any(map(pattern_problem, patterns)) and (problem := size_problem(patterns)):
        yield SpecProblem("by_pattern", f"its patterns {problem}", "shorten their repetitions, or drop some")
    policies = {recrawl.policy, *(rule.policy for rule in recrawl.by_pattern)}
    if recrawl.requests_per_day is None and RecrawlPolicy.ADAPTIVE in policies:
        yield SpecProblem(
            "requests_per_day", "is required for the policy adaptive", "set how many requests a day it may spend"
        )
    if recrawl.requests_per_day is not None and RecrawlPolicy.ADAPTIVE not in policies:
        yield SpecProblem(
            "requests_per_day", f"has no effect with the policy {recrawl.policy}", "set policy to adaptive, or drop it"
        )
    if recrawl.policy is RecrawlPolicy.NEVER and policies - {RecrawlPolicy.NEVER, None}:
        yield SpecProblem("policy", "is never, so no rule of by_pattern can apply", "set it to fixed or adaptive")


def _priority_sizes(rules: Sequence[PriorityRule]) -> SpecProblem | None:
    patterns = [rule.match for rule in rules if pattern_problem(rule.match) is None]
    problem = size_problem(patterns)
    return None if problem is None else SpecProblem("priority", f"its patterns {problem}", "shorten or drop some")


def _media(media: Media) -> Iterator[SpecProblem]:
    for name, types in (("fetched", media.fetched), ("stored", media.stored), ("parsed", media.parsed)):
        for index, entry in enumerate(types or ()):
            if (problem := media_type_problem(entry)) is not None:
                yield SpecProblem(f"{name}[{index}]", *problem)


def _egress(egress: Egress) -> Iterator[SpecProblem]:
    for index, network in enumerate(egress.allow):
        if (problem := network_problem(network)) is not None:
            yield SpecProblem(f"allow[{index}]", *problem)


def _whole(spec: CrawlSpec) -> Iterator[SpecProblem]:
    if problem := _priority_sizes(spec.priority):
        yield problem
    yield from _overrides(spec)
    if spec.robots.ignore_for and not spec.politeness.obey_robots:
        yield SpecProblem(
            "robots.ignore_for",
            "has no effect, because politeness.obey_robots is false for all hosts",
            "leave politeness.obey_robots out to obey all other hosts",
        )
    if spec.budget.max_requisites is not None and spec.scope.requisites is Requisites.NONE:
        yield SpecProblem(
            "budget.max_requisites",
            "has no effect, because scope.requisites is none",
            "set scope.requisites to same-host or all, or drop it",
        )
    for index, seed in enumerate(spec.seeds):
        if scheme_of(seed.url) not in spec.scope.schemes:
            yield SpecProblem(
                f"seeds[{index}].url", f"its scheme is not among scope.schemes: {', '.join(spec.scope.schemes)}"
            )
        if len(seed.url) > spec.scope.max_url_length:
            yield SpecProblem(
                f"seeds[{index}].url", f"is longer than scope.max_url_length, {spec.scope.max_url_length}"
            )
