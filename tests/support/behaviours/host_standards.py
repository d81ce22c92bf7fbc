"""Behaviours from the standards and from this project's docs: names of hosts, links that are left out, slow bodies and
connections that servers close."""

from typing import Final

from tests.support.behaviours.behaviour import Answer, Behaviour, links, page, redirect, site

LINK: Final = b'<title>t</title><a href="/ok">x</a>\n'
DRIP_S: Final = 0.5
FILLER: Final = b"<p>slowly</p>\n"

HOSTS: Final = (
    Behaviour(
        "idn_in_links_is_punycode",
        "WHATWG URL, host parser; UTS #46",
        site(
            links(
                "http://bücher.test:{port}/ok/1",
                "http://b%C3%BCcher.test:{port}/ok/2",
                "http://BÜCHER.test:{port}/ok/3",
                "HTTP://XN--BCHER-KVA.TEST:{port}/ok/4",
                "//bücher\u3002test:{port}/ok/5",
                "http://bu\u0308cher.test:{port}/ok/6",
            )
        ),
        ("/", *(f"/ok/{n}" for n in range(1, 7))),
        host="xn--bcher-kva.test",
    ),
    Behaviour(
        "idn_in_a_location_is_punycode",
        "Fetch, location URL; WHATWG URL, host parser",
        site(
            links("/a", "/b", "/c"),
            {
                "/a": redirect("http://k\xc3\xa4se.test:{port}/ok/1"),
                "/b": redirect("http://k%C3%A4se.test:{port}/ok/2", 301),
                "/c": redirect("//XN--KSE-QLA.Test:{port}/ok/3", 307),
            },
        ),
        ("/", "/a", "/b", "/c", "/ok/1", "/ok/2", "/ok/3"),
        host="xn--kse-qla.test",
    ),
    Behaviour(
        "sharp_s_is_kept_in_a_name",
        "UTS #46, nontransitional processing",
        site(links("http://straße.test:{port}/ok", "http://STRAẞE.test:{port}/ok/2")),
        ("/", "/ok", "/ok/2"),
        host="xn--strae-oqa.test",
    ),
    Behaviour(
        "name_with_a_trailing_dot_is_the_same_host",
        "RFC 1034 §3.1; docs/crawls.md, hosts",
        site(
            links("http://dotted.test.:{port}/ok/1", "/a"),
            {"/a": redirect("http://dotted.test.:{port}/ok/2"), "/ok/1": page("one"), "/ok/2": page("two")},
        ),
        ("/", "/ok/1", "/a", "/ok/2"),
        ends={
            "/ok/1": "",
            "/ok/2": "",
            "http://dotted.test.:{port}/ok/1": "done",
            "http://dotted.test.:{port}/ok/2": "done",
        },
        host="dotted.test",
    ),
    Behaviour(
        "host_that_is_none_is_no_link",
        "WHATWG URL, host parser: forbidden host code points, IPv6 and ports",
        site(links("http://exa mple.test/", "http://a%00b.test/", "http://[::1/", "http://a:99999/")),
        ("/",),
        left_out={"invalid": 4},
    ),
)

LEFT_OUT: Final = (
    Behaviour(
        "links_of_other_schemes_are_counted",
        "docs/crawls.md, links that are left out",
        site(links("mailto:a@b.test", "JavaScript:x()", "tel:+1", "data:text/html,x", "ftp://{ip}/x", "/ok")),
        ("/", "/ok"),
        left_out={"scheme": 5},
    ),
    Behaviour(
        "redirect_to_another_scheme_is_counted",
        "docs/crawls.md, links that are left out",
        site(links("/a"), {"/a": redirect("mailto:a@b.test")}),
        ("/", "/a"),
        left_out={"scheme": 1},
    ),
    Behaviour(
        "links_to_other_hosts_and_ports_are_counted",
        "docs/crawls.md, links that are left out",
        site(links("{bystander}/x", "{bystander}/y", "http://{ip}:9/x", "/ok")),
        ("/", "/ok"),
        left_out={"other_host": 2, "other_port": 1},
    ),
    Behaviour(
        "nofollow_is_counted",
        "docs/crawls.md, links that are left out",
        site(page('<a rel="nofollow" href="/no/1">x</a><a rel="ugc" href="/no/2">x</a><a href="/ok">x</a>')),
        ("/", "/ok"),
        left_out={"nofollow": 2},
    ),
    Behaviour(
        "long_links_are_counted",
        "docs/limits.md, scope.max_url_length",
        site(links("/" + "l" * 2_100, "/ok")),
        ("/", "/ok"),
        left_out={"url_length": 1},
    ),
)

TIMES: Final = (
    Behaviour(
        "slow_body_within_the_limit_is_whole",
        "docs/limits.md, fetch.total_timeout_s",
        site(links("/a"), {"/a": Answer(body=LINK + FILLER * 6, drip_s=DRIP_S)}),
        ("/", "/a", "/ok"),
    ),
    Behaviour(
        "endless_body_is_cut_at_the_limit",
        "docs/limits.md, fetch.total_timeout_s",
        site(links("/a"), {"/a": Answer(body=LINK + FILLER * 200, drip_s=DRIP_S, partly=True)}),
        ("/", "/a", "/ok"),
        truncated={"/a": "time"},
    ),
    Behaviour(
        "silence_in_a_body_is_cut_at_the_limit",
        "docs/limits.md, fetch.total_timeout_s",
        site(links("/a"), {"/a": Answer(body=LINK + FILLER, drip_s=100.0, payload=LINK)}),
        ("/", "/a", "/ok"),
        truncated={"/a": "time"},
    ),
    Behaviour(
        "connection_that_was_closed_while_idle_uses_up_no_attempt",
        "RFC 9112 §9.3.1, §9.6; docs/crawls.md",
        # robots.txt leaves its connection open. retry.attempts is 3: without the first loss these are three.
        site(links("/ok"), {})
        | {"/": (Answer(0, framed=False), page("1", status=500), page("2", status=500), links("/ok"))},
        ("/", "/", "/", "/", "/ok"),
    ),
    Behaviour(
        "server_that_closes_idle_connections_about_when_it_is_asked_loses_no_page",
        "RFC 9112 §9.3.1, §9.5",
        site(links(*(f"/{n}" for n in range(12)))),
        ("/", *(f"/{n}" for n in range(12))),
        idle_s=0.2,
    ),
)

HOSTS_AND_TIMES: Final = (*HOSTS, *LEFT_OUT, *TIMES)
