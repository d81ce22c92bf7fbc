"""Mutants: for a behaviour, what removes the rule that it tests.

A mutant replaces functions of the product, named by module and attribute. A replacement is called with the original
and its arguments. It works for the host of its own behaviour alone (`mutated`), so one crawl shows all of them.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
import pycurl
from msgspec import structs

from shared.domain.crawl.scope import ExclusionReason
from workers.parse.mime import Media

Replacement = Callable[..., Any]
Mutant = Mapping[str, Replacement]

EVERYWHERE: Final = frozenset(("gone_is_asked_once", "escapes_are_compared_in_one_form"))
"""Rules that the master has too, which works for all hosts at once: no other behaviour meets them."""

_REDIRECT: Final = "workers.page_reading.redirect_target"
_READ: Final = "workers.discover.reading.read"
_CODINGS: Final = "shared.domain.web.coding._names"
_HEAD: Final = "workers.fetch.exchange.response_head"
_RULES: Final = "shared.domain.web.robots.rules_for"
_RESOLVE: Final = "workers.outlinks.Resolver.resolve"
_SCAN: Final = "workers.parse.html.scan_tags"
_CLASSIFY: Final = "workers.page_reading.classify"
_SNIFF: Final = "workers.page_reading.sniff"
_JUDGE: Final = "shared.domain.crawl.scope.CompiledScope.judge"
_LINES: Final = "shared.domain.web.robots_rules._lines"
_OCTET: Final = "shared.domain.web.robots_rules._octet"
_PATTERN: Final = "shared.domain.web.robots_rules._pattern"
_ADD: Final = "shared.domain.web.robots_rules._Group._add"


def _no_such_redirect(status: int) -> Mutant:
    def read(original: Replacement, crawl: Any, page: Any, depth: int, hops: int, answer: Any, *rest: Any) -> Any:
        status_seen = 200 if answer.status == status else answer.status
        return original(crawl, page, depth, hops, structs.replace(answer, status=status_seen), *rest)

    return {_READ: read}


def _chunks_kept() -> Mutant:
    def begin(original: Replacement, exchange: Any, *rest: Any) -> None:
        original(exchange, *rest)
        exchange.curl.setopt(pycurl.HTTP_TRANSFER_DECODING, 0)

    def reset(original: Replacement, exchange: Any) -> None:
        original(exchange)
        exchange.curl.setopt(pycurl.HTTP_TRANSFER_DECODING, 1)

    return {"workers.fetch.exchange.CurlExchange.begin": begin, "workers.fetch.exchange.CurlExchange.reset": reset}


def _first_head(original: Replacement, lines: list[bytes]) -> Any:
    return original(lines[: lines.index(b"\r\n") + 1])


def _names_as_sent(original: Replacement, lines: list[bytes]) -> Any:
    head = original(lines)
    pairs = [line.partition(":") for line in head.raw.decode("latin-1").split("\r\n")[1:-2]]
    return structs.replace(head, headers=tuple((name, value.strip()) for name, _, value in pairs))


def _by_line_alone(original: Replacement, group: Any, pattern: bytes, rule: Any) -> None:
    original(group, pattern, rule._replace(size=0))


def _disallow_wins(original: Replacement, group: Any, pattern: bytes, rule: Any) -> None:
    original(group, pattern, rule._replace(size=rule.size - rule.allows))


def _prefix_of_token(original: Replacement, value: bytes, name: bytes) -> int | None:
    return 0 if value.lower().startswith(name) or name.startswith(value.lower()) else original(value, name)


def _case_of_token(original: Replacement, value: bytes, name: bytes) -> int | None:
    return None if value.isupper() else original(value, name)


def _status_as(old: int, new: int) -> Mutant:
    def record(original: Replacement, status: int, *rest: Any, **more: Any) -> Any:
        return original(new if status == old else status, *rest, **more)

    return {"workers.robots.robots_record": record}


def _resolving(change: Callable[[str], str | None]) -> Mutant:
    def resolve(original: Replacement, resolver: Any, reference: str) -> Any:
        changed = change(reference)
        return None if changed is None else original(resolver, changed)

    return {_RESOLVE: resolve}


def _redirecting(change: Callable[[str], str | None]) -> Mutant:
    def target(original: Replacement, location: str, page: str) -> Any:
        changed = change(location)
        return None if changed is None else original(changed, page)

    return {_REDIRECT: target}


def _scanning(change: Callable[[bytes], bytes]) -> Mutant:
    return {_SCAN: lambda original, body, **more: original(change(body), **more)}


def _without_frames(original: Replacement, body: bytes, **more: Any) -> Any:
    scan = original(body, **more)
    return scan._replace(tags=[tag for tag in scan.tags if not tag.startswith((b"area", b"iframe"))])


def _last_base(original: Replacement, head: Any, element: Any) -> Any:
    if element.name == b"base":
        head.base_href = None
    return original(head, element)


def _typed(change: Callable[[bytes, str | None], Media | None]) -> Mutant:
    def classify(original: Replacement, body: bytes, content_type: str | None) -> Media:
        changed: Media = change(body, content_type) or original(body, content_type)
        return changed

    return {_CLASSIFY: classify}


def _unless(reason: ExclusionReason) -> Mutant:
    def judge(original: Replacement, scope: Any, url: str, host: str, **more: Any) -> Any:
        rule = original(scope, url, host, **more)
        return None if rule is not None and rule.name is reason else rule

    return {_JUDGE: judge}


def _retried(original: Replacement, end: Any) -> Any:
    return original(500 if end == 410 else end)


def _in_ascii(reference: str) -> str | None:
    return None if re.search(r"[^\x00-\x7f]|%", reference) else reference


def _hasty(original: Replacement, *given: Any, **more: Any) -> Any:
    request = original(*given, **more)
    return structs.replace(request, limits=structs.replace(request.limits, total_s=1.0))


def _blamed(original: Replacement, *given: Any) -> Any:
    return structs.replace(original(*given), stale=False)


def _whole(original: Replacement, *given: Any, **more: Any) -> Any:
    return msgspec.structs.replace(original(*given, **more), truncated="")


HTTP: Final[dict[str, Mutant]] = {
    "relative_location_is_resolved": _redirecting(lambda location: location if "://" in location else None),
    "fragment_of_a_location_is_not_sent": _redirecting(lambda location: location.replace("#", "%23")),
    "permanent_redirect_308_is_followed": _no_such_redirect(308),
    "see_other_leads_on_by_get": _no_such_redirect(303),
    "gone_is_asked_once": {"shared.domain.frontier.failure.policy_for": _retried},
    "retry_after_of_a_503_is_kept": {"workers.visit.retry_after_ms": lambda original, answer, now_ms: -1},
    "early_hints_come_before_the_answer": {_HEAD: _first_head},
    "x_gzip_is_gzip": {_CODINGS: lambda original, value: original(value.replace("x-gzip", "x-unknown"))},
    "codings_are_removed_in_reverse_order": {_CODINGS: lambda original, value: original(value)[-1:]},
    "field_names_have_any_case": {_HEAD: _names_as_sent},
    "media_types_have_any_case_and_quoted_parameters": {
        _SNIFF: lambda original, body, content_type: original(body, content_type.replace('"', "x"))
    },
    "chunks_have_extensions_and_trailers": _chunks_kept(),
    "transfer_encoding_overrides_content_length": _chunks_kept(),
    "link_fields_lead_on": {"workers.page_reading.field_links": lambda original, *given: iter(())},
    "body_that_ended_early_is_asked_for_again": {"workers.visit.outcome.answered": _whole},
}

ROBOTS: Final[dict[str, Mutant]] = {
    "groups_of_one_agent_are_one": {
        _RULES: lambda original, body, token: original(body[: body.rfind(b"User-agent: *")], token)
    },
    "own_group_replaces_the_one_for_all": {_RULES: lambda original, body, token: original(body, "none")},
    "product_token_has_any_case": {"shared.domain.web.robots_rules._named": _case_of_token},
    "part_of_a_product_token_is_another_agent": {"shared.domain.web.robots_rules._named": _prefix_of_token},
    "longest_rule_decides": {_ADD: _by_line_alone},
    "allow_wins_between_equal_rules": {_ADD: _disallow_wins},
    "star_and_dollar_are_special": {
        _PATTERN: lambda original, value: original(value.replace(b"*", b"%2A").replace(b"$", b"%24"))
    },
    "escaped_star_is_a_star": {
        _PATTERN: lambda original, value: original(value.replace(b"%2A", b"*").replace(b"%24", b"$"))
    },
    "escapes_of_unreserved_characters_are_undone": {
        _OCTET: lambda original, octet, same: octet if len(octet) > 1 else original(octet, same)
    },
    "octets_beyond_ascii_are_escaped": {
        _OCTET: lambda original, octet, same: octet if len(octet) == 1 else original(octet, same)
    },
    "robots_that_is_forbidden_allows_all": _status_as(403, 200),
    "robots_that_fails_forbids_all": _status_as(500, 404),
    "five_redirects_of_robots_are_followed": {
        "workers.robots.redirect_target": lambda original, location, page: (
            None if page.endswith("/r/4") else original(location, page)
        )
    },
    "other_records_end_no_group": {
        _RULES: lambda original, body, token: original(body.replace(b"Sitemap", b"Allow"), token)
    },
    "byte_order_mark_before_robots_is_skipped": {_LINES: lambda original, body: body.splitlines()},
    "lines_of_robots_end_with_cr_too": {_LINES: lambda original, body: body.split(b"\n")},
    "empty_disallow_forbids_nothing": {
        "shared.domain.web.robots_rules._Group.add": lambda original, group, value, **more: original(
            group, value or b"/", **more
        )
    },
}

URLS: Final[dict[str, Mutant]] = {
    "dot_segments_are_removed": _resolving(lambda reference: reference.replace("../", "").replace("./", "")),
    "reference_with_a_query_alone_keeps_the_path": _resolving(
        lambda reference: f"./{reference}" if reference.startswith("?") else reference
    ),
    "escapes_are_compared_in_one_form": {"shared.domain.web.url._normal_escapes": lambda original, href: href},
    "network_path_reference_names_a_host": _resolving(lambda reference: f"/{reference.lstrip('/')}"),
    "scheme_has_any_case": _resolving(lambda reference: None if reference.startswith("HTTP") else reference),
    "tabs_and_line_ends_in_a_link_are_removed": _resolving(lambda reference: re.sub(r"[\t\n\r]", "%0A", reference)),
    "backslashes_are_slashes": _resolving(lambda reference: reference.replace("\\", "%5C")),
    "spaces_around_a_link_are_removed": _resolving(lambda reference: re.sub(r"[\x00-\x20]", "%20", reference)),
    "number_is_an_address": _resolving(lambda reference: None),
    "characters_of_paths_and_queries_are_escaped": _resolving(
        lambda reference: None if re.search(r"[ \"'<>{}]", reference) else reference
    ),
    "query_is_written_in_the_encoding_of_the_page": {
        "workers.parse.html.query_in": lambda original, encoding, reference: reference
    },
}

PAGES: Final[dict[str, Mutant]] = {
    "first_base_is_the_base": {"workers.parse.html._Head.add": _last_base},
    "character_references_in_attributes_are_resolved": {
        "workers.parse.html.attribute_text": lambda original, raw, codec, **more: raw.decode(codec)
    },
    "text_of_scripts_and_comments_has_no_links": _scanning(
        lambda body: re.sub(rb"<(?:!--|script|title|textarea|style)>?", b"<i>", body)
    ),
    "areas_and_frames_lead_on": {_SCAN: _without_frames},
    "meta_refresh_leads_on": {"workers.parse.html.parse_refresh": lambda original, content: None},
    "attributes_need_no_quotes": _scanning(lambda body: re.sub(rb"(?i)href ?= ?/", b"data-none=/", body)),
    "meta_charset_names_the_encoding": {"workers.parse.charset._prescan": lambda original, head: None},
    "byte_order_mark_beats_the_charset": {
        _SNIFF: lambda original, body, content_type: original(body.removeprefix(b"\xef\xbb\xbf"), content_type)
    },
    "iso_8859_1_is_windows_1252": {"workers.parse.charset.codec_of": lambda original, label: label},
    "utf_16_in_a_meta_is_utf_8": {"workers.parse.charset._of_ascii_markup": lambda original, label: "utf-16-le"},
    "empty_elements_of_xhtml_hold_nothing": {
        "workers.page_reading.parse_html": lambda original, body, **more: original(body, **{**more, "xml": False})
    },
    "page_without_a_type_is_sniffed": _typed(lambda body, declared: None if declared else Media.OTHER),
    "unknown_type_is_sniffed": _typed(lambda body, declared: Media.OTHER if declared == "unknown/unknown" else None),
    "plain_text_has_no_links": _typed(lambda body, declared: Media.HTML),
    "html_stays_html_whatever_it_begins_with": _typed(
        lambda body, declared: Media.OTHER if body.startswith(b"BZh") else None
    ),
    "type_that_is_sent_twice_counts_once": _typed(
        lambda body, declared: Media.OTHER if "," in (declared or "") else None
    ),
    "last_of_two_types_counts": {
        "shared.domain.web.fetch.Answer.joined": lambda original, answer, name: answer.header(name)
    },
    "same_type_keeps_the_charset_before": {
        "workers.parse.charset.parse_content_type": lambda original, value: original(value.rpartition(",")[2])
    },
}

PROMISES: Final[dict[str, Mutant]] = {
    "redirect_to_a_closed_path_is_not_followed": {"workers.robots.Robots.allows": lambda original, *_: True},
    "redirect_to_another_host_is_not_followed": _unless(ExclusionReason.HOST),
    "link_to_another_host_is_not_followed": _unless(ExclusionReason.HOST),
    "chain_of_redirects_ends_after_ten": _unless(ExclusionReason.HOPS),
    "repeated_segments_are_a_trap": {"shared.domain.crawl.scope.trap": lambda original, url, traps: None},
    "repeated_parameters_are_a_trap": {"shared.domain.crawl.scope.trap": lambda original, url, traps: None},
}

_UNCOUNTED: Final[Mutant] = {"workers.outlinks.Outlinks.left_out": lambda original, outlinks: {}}

HOSTS: Final[dict[str, Mutant]] = {
    "idn_in_links_is_punycode": _resolving(_in_ascii),
    "idn_in_a_location_is_punycode": _redirecting(_in_ascii),
    "sharp_s_is_kept_in_a_name": _resolving(lambda reference: re.sub("[ßẞ]", "ss", reference)),
    "name_with_a_trailing_dot_is_the_same_host": {
        "shared.domain.web.url._host_key": lambda original, authority: authority
    },
    "host_that_is_none_is_no_link": {"workers.outlinks.without_url": lambda original, reference: "scheme"},
    "links_of_other_schemes_are_counted": _UNCOUNTED,
    "redirect_to_another_scheme_is_counted": {"workers.page_reading.without_url": lambda original, named: "invalid"},
    "links_to_other_hosts_and_ports_are_counted": _UNCOUNTED,
    "nofollow_is_counted": _UNCOUNTED,
    "long_links_are_counted": _UNCOUNTED,
    "slow_body_within_the_limit_is_whole": {"workers.visit_crawls.VisitCrawl.request": _hasty},
    "endless_body_is_cut_at_the_limit": {"workers.visit.outcome.answered": _whole},
    "silence_in_a_body_is_cut_at_the_limit": {"workers.visit.outcome.answered": _whole},
    "connection_that_was_closed_while_idle_uses_up_no_attempt": {
        "workers.fetch.exchange.CurlExchange._failed": _blamed
    },
}

MUTANTS: Final = {**HTTP, **ROBOTS, **URLS, **PAGES, **PROMISES, **HOSTS}
