"""Behaviours of pages: which references lead on, in which encodings, and what is a page at all."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from tests.support.behaviours.behaviour import HTML, Answer, Behaviour, links, page, site

NONE: Final[Mapping[str, int]] = MappingProxyType({})
OK: Final = '<a href="/ok">x</a>'


def _leads(
    name: str,
    source: str,
    body: str | bytes,
    *asked: str,
    headers: tuple[str, ...] = (),
    left_out: Mapping[str, int] = NONE,
    not_indexed: str = "",
) -> Behaviour:
    """A seed with `body`, from which a crawl must go to `asked`, and nowhere else."""
    unlisted = {"/": not_indexed} if not_indexed else {}
    answers = site(page(body, *headers))
    return Behaviour(name, source, answers, ("/", *asked), left_out=dict(left_out), not_indexed=unlisted)


def _titled(name: str, source: str, title: str, body: bytes, *headers: str) -> Behaviour:
    answer = page(body, *(headers or ("Content-Type: text/html",)))
    return Behaviour(name, source, site(answer), ("/", "/ok"), titles={"/": title})


REFERENCES: Final = (
    _leads(
        "nofollow_links_are_left",
        "HTML §4.6.7.14",
        f'{OK}<a rel="x nofollow" href="/1"><a rel=ugc href="/2"><a rel="sponsored" href=/3>',
        "/ok",
        left_out={"nofollow": 3},
    ),
    _leads(
        "next_and_prev_lead_on",
        "HTML §4.6.7.18",
        '<link rel="next" href="/ok/1"><link rel=prev href="/ok/2">',
        "/ok/1",
        "/ok/2",
    ),
    _leads("canonical_leads_on", "RFC 6596 §3", '<link rel=canonical href="/ok">', "/ok"),
    _leads(
        "resources_are_no_pages",
        "HTML §4.6.7",
        f'{OK}<link rel=stylesheet href=/1><link rel="icon" href=/2><img src=/3><script src=/4></script>'
        '<video src=/5></video><img srcset="/6 2x">',
        "/ok",
    ),
    _leads(
        "forms_are_not_sent",
        "HTML §4.10.3",
        f'<form action="/1" method=post><button formaction="/2"></form>{OK}',
        "/ok",
    ),
    _leads(
        "reference_to_the_page_itself_is_none",
        "RFC 3986 §4.4",
        f'<a href="">x</a><a href="#a">x</a><a href="/">x</a><a href="/#b">x</a>{OK}',
        "/ok",
    ),
    _leads(
        "other_schemes_are_left",
        "RFC 3986 §3.1",
        f'<a href="mailto:a@b"><a href="tel:1"><a href="data:text/html,x"><a href="javascript:x()">'
        f'<a href="ftp://{{ip}}/x"><a href="blob:x"><a href="about:blank">{OK}',
        "/ok",
        left_out={"scheme": 7},
    ),
    _leads(
        "links_with_a_user_are_left",
        "RFC 3986 §7.5",
        f'<a href="http://a:b@{{ip}}:{{port}}/1">x</a><a href="http://a@{{ip}}:{{port}}/2">x</a>{OK}',
        "/ok",
        left_out={"invalid": 2},
    ),
    _leads(
        "broken_links_are_left",
        "WHATWG URL, failures",
        f'<a href="http://"><a href="http://[1"><a href="//"><a href="http://a b/"><a href="http://x:99999/"><a href="http:///[">{OK}',
        "/ok",
        left_out={"invalid": 6},
    ),
    _leads(
        "queries_are_not_merged",
        "RFC 3986 §6.2.2",
        '<a href="/ok?"><a href="/ok"><a href="/ok?b&a"><a href="/ok?a&b">',
        "/ok?",
        "/ok",
        "/ok?b&a",
        "/ok?a&b",
    ),
    _leads(
        "slashes_and_case_are_not_merged",
        "RFC 3986 §6.2.2",
        '<a href="/a//b"><a href="/a/b"><a href="/a/b/"><a href="/A/b">',
        "/a//b",
        "/a/b",
        "/a/b/",
        "/A/b",
    ),
    _leads("links_are_asked_once", "README, what is promised", OK * 5_000, "/ok"),
    _leads("links_of_templates_are_none", "HTML §4.12.3", f'<template><a href="/1">x</a></template>{OK}', "/ok"),
    _leads("links_without_scripts_lead_on", "HTML §4.12.2", f"<noscript>{OK}</noscript>", "/ok"),
    _leads("links_without_frames_lead_on", "HTML §16.3", f"<noframes>{OK}</noframes>", "/ok"),
    _leads(
        "links_of_drawings_lead_on",
        "SVG 2 §16.2",
        '<svg><a xlink:href="/ok/1"><text>x</text></a><a href="/ok/2"/></svg>',
        "/ok/1",
        "/ok/2",
    ),
    _leads(
        "links_of_shadow_roots_lead_on",
        "HTML §4.12.3",
        f'<div><template shadowrootmode="open">{OK}</template></div>',
        "/ok",
    ),
    _leads("reload_leads_nowhere", "HTML §4.2.5.3", f'<meta http-equiv=refresh content="5">{OK}', "/ok"),
    _leads(
        "base_on_another_host_moves_the_links",
        "HTML §4.2.3",
        '<base href="{bystander}/base_on_another_host_moves_the_links"><a href="?">x</a><a href="{origin}/ok">x</a>',
        "/ok",
        left_out={"other_host": 1},
    ),
    _leads("base_that_is_no_url_is_left", "HTML §4.2.3", f'<base href="http://[">{OK}', "/ok"),
    _leads("base_of_data_is_left", "HTML §4.2.3", f'<base href="data:text/html,x">{OK}', "/ok"),
    _leads(
        "line_ends_by_reference_are_removed", "WHATWG URL, basic URL parser", '<a href="/o&#10;k&#x9;">x</a>', "/ok"
    ),
    _leads("unclosed_markup_ends_with_the_page", "HTML §13.2.5", f'{OK}<a href="/no', "/ok"),
    _leads("deep_nesting_is_read", "HTML §13.2", "<div>" * 20_000 + OK, "/ok"),
    _leads("unclosed_formatting_is_read", "HTML §13.2.6", "<b><i><font>" * 5_000 + OK, "/ok"),
    _leads("end_tags_have_no_links", "HTML §13.2.5.7", f'</a href="/no">{OK}', "/ok"),
    _leads("first_of_two_attributes_counts", "HTML §13.2.5.33", '<a href="/ok" href="/no">x</a>', "/ok"),
    _leads(
        "cycling_segments_are_a_trap",
        "docs/limits.md, traps",
        '<a href="/ok"><a href="/a/b/a/b/a/b/1/2/3/4">',
        "/ok",
        left_out={"trap": 1},
    ),
    _leads(
        "robots_meta_stops_links",
        "Robots meta tag",
        f'<meta name="ROBOTS" content="noindex,NoFollow">{OK}',
        left_out={"nofollow": 1},
        not_indexed="noindex",
    ),
    _leads(
        "robots_meta_none_stops_links",
        "Robots meta tag",
        f"<meta name=robots content=none>{OK}",
        left_out={"nofollow": 1},
        not_indexed="noindex",
    ),
    _leads(
        "robots_meta_for_another_is_not_ours",
        "Robots meta tag",
        f'<meta name="otherbot" content="nofollow">{OK}',
        "/ok",
    ),
    _leads(
        "robots_meta_by_our_name_is_ours",
        "Robots meta tag",
        f'<meta name="orb" content="nofollow">{OK}',
        left_out={"nofollow": 1},
    ),
    _leads(
        "noindex_keeps_a_page_out_of_lists",
        "Robots meta tag",
        f'<meta name="robots" content="noindex">{OK}',
        "/ok",
        not_indexed="noindex",
    ),
    _leads(
        "past_unavailable_after_keeps_a_page_out_of_lists",
        "X-Robots-Tag",
        OK,
        "/ok",
        headers=(HTML, "X-Robots-Tag: unavailable_after: Friday, 25-Jun-10 15:00:00 GMT"),
        not_indexed="unavailable_after",
    ),
    _leads(
        "future_unavailable_after_keeps_nothing_out",
        "X-Robots-Tag",
        OK,
        "/ok",
        headers=(HTML, "X-Robots-Tag: unavailable_after: 2999-01-01"),
    ),
    _leads("canonical_field_leads_on", "RFC 6596 §3", "x", "/ok", headers=(HTML, "Link: </ok>; rel=canonical")),
    _leads(
        "canonical_element_counts_before_the_field",
        "RFC 6596 §3",
        '<link rel=canonical href="/ok">',
        "/ok",
        headers=(HTML, "Link: </no>; rel=canonical"),
    ),
    _leads(
        "robots_field_stops_links",
        "X-Robots-Tag",
        OK,
        headers=(HTML, "X-Robots-Tag: noindex", "X-Robots-Tag: nofollow"),
        left_out={"nofollow": 1},
        not_indexed="noindex",
    ),
    _leads(
        "robots_field_for_another_is_not_ours",
        "X-Robots-Tag",
        OK,
        "/ok",
        headers=(HTML, "X-Robots-Tag: otherbot: nofollow"),
    ),
    _leads(
        "robots_field_by_our_name_is_ours",
        "X-Robots-Tag",
        OK,
        headers=(HTML, "X-Robots-Tag: otherbot: noindex, orb: none"),
        left_out={"nofollow": 1},
        not_indexed="noindex",
    ),
    _leads(
        "page_cannot_reach_other_addresses",
        "README, egress",
        f'<iframe src="http://169.254.169.254/latest/"></iframe><a href="http://localhost:{{port}}/x">x</a>{OK}',
        "/ok",
        left_out={"other_host": 2},
    ),
)

ENCODINGS: Final = (
    _titled("utf_16_by_its_mark_is_read", "Encoding §6", "кот", f"\ufeff<title>кот</title>{OK}".encode("utf-16-le")),
    _titled(
        "utf_16_by_the_header_is_read",
        "Encoding §4.2",
        "кот",
        f"<title>кот</title>{OK}".encode("utf-16-be"),
        "Content-Type: text/html; charset=utf-16be",
    ),
    _titled(
        "late_meta_charset_is_found",
        "HTML §13.2.6.4.4",
        "кот",
        f"<!--{'x' * 2_000}--><meta charset=windows-1251><title>кот</title>{OK}".encode("cp1251"),
    ),
    _titled(
        "meta_http_equiv_names_the_encoding",
        "HTML §4.2.5.3",
        "кот",
        f'<meta http-equiv="Content-Type" content="text/html; charset=koi8-r"><title>кот</title>{OK}'.encode("koi8-r"),
    ),
    _titled(
        "header_beats_the_meta",
        "HTML §13.2.3.2",
        "кот",
        f"<meta charset=koi8-r><title>кот</title>{OK}".encode("cp1251"),
        "Content-Type: text/html; charset=windows-1251",
    ),
    _titled(
        "xml_declaration_names_the_encoding",
        "XML §4.3.3",
        "кот",
        f'<?xml version="1.0" encoding="windows-1251"?><title>кот</title>{OK}'.encode("cp1251"),
        "Content-Type: application/xhtml+xml",
    ),
    _titled(
        "unknown_charset_is_guessed",
        "Encoding §4.2",
        "кот",
        f"<title>кот</title>{OK}".encode(),
        "Content-Type: text/html; charset=klingon",
    ),
    _titled(
        "gb2312_is_gbk",
        "Encoding §4.2",
        "镕",
        f"<title>镕</title>{OK}".encode("gbk"),
        "Content-Type: text/html; charset=gb2312",
    ),
    _titled("broken_utf_8_is_replaced", "Encoding §8.1.1", "a\ufffdb", b"<title>a\xffb</title>" + OK.encode(), HTML),
    _titled("nul_in_a_page_is_skipped", "HTML §13.2.5.1", "t", b"<title>t</title>\0" + OK.encode(), HTML),
    _titled("title_is_text", "HTML §4.2.2", "a & b <i> c", f"<title>\n a &amp; b\t<i> c </title>{OK}".encode(), HTML),
)


def _no_page(name: str, source: str, body: bytes, *headers: str) -> Behaviour:
    """What is stored and not read for links."""
    return Behaviour(name, source, site(links("/a"), {"/a": Answer(200, headers, body)}), ("/", "/a"))


KINDS: Final = (
    _no_page("picture_of_markup_is_no_page", "MIME Sniffing §7", OK.encode(), "Content-Type: image/png"),
    _no_page("pdf_is_no_page_whatever_it_says", "MIME Sniffing §6.3", b"%PDF-1.7\n" + OK.encode(), HTML),
    _no_page(
        "feed_is_no_page",
        "RFC 4287",
        f'<feed xmlns="http://www.w3.org/2005/Atom">{OK}</feed>'.encode(),
        "Content-Type: application/atom+xml",
    ),
    _no_page("unknown_bytes_are_no_page", "MIME Sniffing §7.1", b"\0\1\2\3" + OK.encode()),
    _no_page("plain_text_without_a_type_is_no_page", "MIME Sniffing §7.1", b"text " + OK.encode()),
    _no_page("download_of_bytes_is_no_page", "MIME Sniffing §7", OK.encode(), "Content-Type: application/octet-stream"),
    _leads(
        "nul_leaves_a_page_without_a_type_a_page", "MIME Sniffing §7.1", f"<html>\0{OK}", "/ok", headers=("X-A: b",)
    ),
    _leads(
        "malformed_type_means_html",
        "Issue of a server in the field",
        OK,
        "/ok",
        headers=("Content-Type: text/html charset=utf-8",),
    ),
    _leads(
        "empty_type_is_sniffed", "Fetch, extract a MIME type", f"<!DOCTYPE html>{OK}", "/ok", headers=("Content-Type:",)
    ),
    _leads(
        "type_that_is_no_type_is_sniffed",
        "Fetch, extract a MIME type",
        f"<!DOCTYPE html>{OK}",
        "/ok",
        headers=("Content-Type: html",),
    ),
)

MARKUP: Final = (*REFERENCES, *ENCODINGS, *KINDS)
