"""Behaviours from a fresh reading of the standards and of this project's docs, not of the code: HTTP, robots.txt."""

import gzip
from typing import Final

from tests.support.behaviours.behaviour import HTML, PLAIN, Answer, Behaviour, links, page, redirect, ruled, site

HTTP: Final = (
    Behaviour(
        "relative_location_is_resolved",
        "RFC 9110 §10.2.2",
        site(links("/a/b"), {"/a/b": redirect("c?d")}),
        ("/", "/a/b", "/a/c?d"),
    ),
    Behaviour(
        "fragment_of_a_location_is_not_sent",
        "RFC 9110 §10.2.2",
        site(links("/a"), {"/a": redirect("/ok#part", 301)}),
        ("/", "/a", "/ok"),
    ),
    Behaviour(
        "permanent_redirect_308_is_followed",
        "RFC 9110 §15.4.9",
        site(links("/a"), {"/a": redirect("/ok", 308)}),
        ("/", "/a", "/ok"),
    ),
    Behaviour(
        "see_other_leads_on_by_get",
        "RFC 9110 §15.4.4",
        site(links("/a"), {"/a": redirect("/b", 303), "/b": redirect("/ok", 303)}),
        ("/", "/a", "/b", "/ok"),
    ),
    Behaviour(
        "gone_is_asked_once",
        "RFC 9110 §15.5.11",
        site(links("/gone"), {"/gone": page("gone", status=410)}),
        ("/", "/gone"),
        ends={"/gone": "failed"},
    ),
    Behaviour(
        "retry_after_of_a_503_is_kept",
        "RFC 9110 §10.2.3",
        site(links("/busy"), {"/busy": (Answer(503, (HTML, "Retry-After: 4"), b"busy"), page("here"))}),
        ("/", "/busy", "/busy"),
        apart_s=4.0,
    ),
    Behaviour(
        "early_hints_come_before_the_answer",
        "RFC 9110 §15.2",
        site(
            links("/a"),
            {"/a": Answer(body=b'<a href="/ok">x</a>', before=b"HTTP/1.1 103 Early Hints\r\nLink: </no>\r\n\r\n")},
        ),
        ("/", "/a", "/ok"),
    ),
    Behaviour(
        "no_content_has_no_body_and_the_connection_goes_on",
        "RFC 9112 §6.3",
        site(links("/empty", "/ok"), {"/empty": Answer(204, (), before=b"")}),
        ("/", "/empty", "/ok"),
    ),
    Behaviour(
        "x_gzip_is_gzip",
        "RFC 9110 §8.4.1.3",
        site(page(gzip.compress(b'<a href="/ok">x</a>', mtime=0), HTML, "Content-Encoding: x-gzip")),
        ("/", "/ok"),
    ),
    Behaviour(
        "codings_are_removed_in_reverse_order",
        "RFC 9110 §8.4",
        site(
            page(
                gzip.compress(gzip.compress(b'<a href="/ok">x</a>', mtime=0), mtime=0),
                HTML,
                "Content-Encoding: gzip, gzip",
            )
        ),
        ("/", "/ok"),
    ),
    Behaviour(
        "field_names_have_any_case",
        "RFC 9110 §5.1",
        site(page('<a href="/a">x</a>', "cOnTeNt-TyPe: text/html"), {"/a": Answer(302, ("LOCATION: /ok",), b"")}),
        ("/", "/a", "/ok"),
    ),
    Behaviour(
        "media_types_have_any_case_and_quoted_parameters",
        "RFC 9110 §8.3.1",
        site(
            page(
                "<title>кот</title>".encode("koi8-r") + b'<a href="/ok">x</a>',
                'Content-Type: Text/HTML;Charset="KOI8-R"',
            )
        ),
        ("/", "/ok"),
        titles={"/": "кот"},
    ),
    Behaviour(
        "chunks_have_extensions_and_trailers",
        "RFC 9112 §7.1",
        site(
            Answer(
                headers=(HTML, "Transfer-Encoding: chunked"),
                body=b'9;a=b\r\n<a href="\r\nA ; c="d"\r\n/ok">x</a>\r\n0\r\nX-After: 1\r\nContent-Type: a/b\r\n\r\n',
                payload=b'<a href="/ok">x</a>',
                framed=False,
            )
        ),
        ("/", "/ok"),
    ),
    Behaviour(
        "transfer_encoding_overrides_content_length",
        "RFC 9112 §6.3",
        site(
            Answer(
                headers=(HTML, "Content-Length: 5", "Transfer-Encoding: chunked"),
                body=b'13\r\n<a href="/ok">x</a>\r\n0\r\n\r\n',
                payload=b'<a href="/ok">x</a>',
                framed=False,
            )
        ),
        ("/", "/ok"),
    ),
    Behaviour(
        "folded_field_is_one_value",
        "RFC 9112 §5.2",
        site(page(b'<title>caf\xe9</title><a href="/ok">x</a>', "Content-Type: text/html;\r\n  charset=windows-1252")),
        ("/", "/ok"),
        titles={"/": "café"},
    ),
    Behaviour(
        "body_that_ended_early_is_asked_for_again",
        "RFC 9112 §8",
        site(
            links("/cut"),
            {
                "/cut": (
                    Answer(headers=(HTML, "Content-Length: 500"), body=b"<p>only this", framed=False),
                    page('<a href="/ok">x</a>'),
                )
            },
        ),
        ("/", "/cut", "/cut", "/ok"),
    ),
    Behaviour(
        "link_fields_lead_on",
        "RFC 8288 §3",
        site(page("x", HTML, 'Link: </ok/1>; rel="next", <ok/2,3>; title="a, <b>"; rel=next')),
        ("/", "/ok/1", "/ok/2,3"),
    ),
)

ROBOTS: Final = (
    ruled(
        "groups_of_one_agent_are_one",
        "RFC 9309 §2.2.1",
        "User-agent: *\nDisallow: /a\n\nUser-agent: other\nDisallow: /\n\nUser-agent: *\nDisallow: /b\n",
        asked="/c",
        closed="/a /b",
    ),
    ruled(
        "own_group_replaces_the_one_for_all",
        "RFC 9309 §2.2.1",
        "User-agent: *\nDisallow: /a\n\nUser-agent: orb\nDisallow: /b\n",
        asked="/a",
        closed="/b",
    ),
    ruled(
        "product_token_has_any_case",
        "RFC 9309 §2.2.1",
        "user-AGENT: ORB\ndisALLOW: /b\n",
        asked="/a",
        closed="/b",
    ),
    ruled(
        "part_of_a_product_token_is_another_agent",
        "RFC 9309 §2.2.1",
        "User-agent: o\nDisallow: /\n\nUser-agent: orbit\nDisallow: /\n\nUser-agent: *\nDisallow: /b\n",
        asked="/a",
        closed="/b",
    ),
    ruled(
        "longest_rule_decides",
        "RFC 9309 §2.2.2",
        "User-agent: *\nAllow: /p/open\nDisallow: /p/\nDisallow: /p/open/not\n",
        asked="/p/open /p/open/yes",
        closed="/p/a /p/open/not",
    ),
    ruled(
        "allow_wins_between_equal_rules",
        "RFC 9309 §2.2.2",
        "User-agent: *\nDisallow: /p\nAllow: /p\n",
        asked="/p",
    ),
    ruled(
        "star_and_dollar_are_special",
        "RFC 9309 §2.2.3",
        "User-agent: *\nDisallow: /*.gif$\nDisallow: /x*y\n",
        asked="/a.gif?b /x",
        closed="/a.gif /x/1/y/2",
    ),
    ruled(
        "escaped_star_is_a_star",
        "RFC 9309 §2.2.3",
        "User-agent: *\nDisallow: /file-%2A.html\nDisallow: /cash%24\n",
        asked="/file-a.html /cash",
        closed="/file-*.html /cash$x",
    ),
    ruled(
        "escapes_of_unreserved_characters_are_undone",
        "RFC 9309 §2.2.2",
        "User-agent: *\nDisallow: /foo/%62%61%7A\n",
        asked="/foo/bar",
        closed="/foo/baz",
    ),
    ruled(
        "octets_beyond_ascii_are_escaped",
        "RFC 9309 §2.2.2",
        "User-agent: *\nDisallow: /foo/ツ\n",
        asked="/foo/a",
        closed="/foo/%E3%83%84",
    ),
    ruled(
        "robots_that_is_forbidden_allows_all",
        "RFC 9309 §2.3.1.3",
        Answer(403, (PLAIN,), b"User-agent: *\nDisallow: /\n"),
        asked="/a",
    ),
    Behaviour(
        "robots_that_fails_forbids_all",
        "RFC 9309 §2.3.1.4",
        site(links("/a"), {"/robots.txt": page("down", status=500)}),
        (),
        ends={"/": "failed"},
    ),
    Behaviour(
        "five_redirects_of_robots_are_followed",
        "RFC 9309 §2.3.1.2",
        site(
            links("/a", "/b"),
            {
                "/robots.txt": redirect("/r/1", 301),
                **{f"/r/{hop}": redirect(str(hop + 1)) for hop in range(1, 5)},
                "/r/5": Answer(200, (PLAIN,), b"User-agent: *\nDisallow: /b\n"),
            },
        ),
        ("/r/1", "/r/2", "/r/3", "/r/4", "/r/5", "/", "/a"),
        ends={"/b": "excluded robots", **{f"/r/{hop}": "" for hop in range(1, 6)}},
    ),
    ruled(
        "other_records_end_no_group",
        "RFC 9309 §2.2.4",
        "User-agent: orb\nSitemap: /s.xml\nUser-agent: other\nUnknown: x\nDisallow: /b\n",
        asked="/a",
        closed="/b",
    ),
    ruled(
        "byte_order_mark_before_robots_is_skipped",
        "RFC 9309 §2.3",
        b"\xef\xbb\xbfUser-agent: *\nDisallow: /b\n",
        asked="/a",
        closed="/b",
    ),
    ruled(
        "lines_of_robots_end_with_cr_too",
        "RFC 9309 §2.2",
        "# for all\rUser-agent : *  # agents\r\r\n  Disallow :/b # no\r",
        asked="/a",
        closed="/b",
    ),
    ruled(
        "empty_disallow_forbids_nothing",
        "RFC 9309 §2.2.2",
        "User-agent: *\nDisallow:\nDisallow: /b\n",
        asked="/a",
        closed="/b",
    ),
)

HTTP_AND_ROBOTS: Final = (*HTTP, *ROBOTS)
