"""Behaviours from a fresh reading of the standards and of this project's docs, not of the code: URLs, pages, types."""

from typing import Final

from tests.support.behaviours.behaviour import PLAIN, Answer, Behaviour, links, page, redirect, site

XHTML: Final = (
    '<?xml version="1.0" encoding="utf-8"?><html xmlns="http://www.w3.org/1999/xhtml"><head><title>t</title>'
    '<script src="/s.js"/></head><body><p><a href="/ok">x</a></p></body></html>'
)

ADDRESSES: Final = (
    Behaviour(
        "dot_segments_are_removed",
        "RFC 3986 §5.2.4",
        site(links("/a/b/"), {"/a/b/": links("../../../ok/1", "./ok/2", "x/../ok/3")}),
        ("/", "/a/b/", "/ok/1", "/a/b/ok/2", "/a/b/ok/3"),
    ),
    Behaviour(
        "reference_with_a_query_alone_keeps_the_path",
        "RFC 3986 §5.4.1",
        site(links("/a/b?c"), {"/a/b?c": links("?y", ";x", "#s")}),
        ("/", "/a/b?c", "/a/b?y", "/a/;x"),
    ),
    Behaviour(
        "escapes_are_compared_in_one_form",
        "RFC 3986 §6.2.2",
        site(links("/%7eu", "/%7Eu", "/~u", "/a%2fb", "/a%2Fb")),
        ("/", "/~u", "/a%2Fb"),
    ),
    Behaviour(
        "network_path_reference_names_a_host",
        "RFC 3986 §5.2",
        site(links("//{ip}:{port}/ok", "//{ip}:{port}")),
        ("/", "/ok"),
    ),
    Behaviour(
        "scheme_has_any_case",
        "RFC 3986 §3.1",
        site(links("HTTP://{ip}:{port}/ok", "http:/a", "MailTo:a@example.org", "JavaScript:x()")),
        ("/", "/ok", "/a"),
        left_out={"scheme": 2},
    ),
    Behaviour(
        "tabs_and_line_ends_in_a_link_are_removed",
        "WHATWG URL, basic URL parser",
        site(links("/o\n\tk/1", "\n/ok/\r\n2\n")),
        ("/", "/ok/1", "/ok/2"),
    ),
    Behaviour(
        "backslashes_are_slashes",
        "WHATWG URL, special URLs",
        site(links("\\ok\\1", "http:\\\\{ip}:{port}\\ok\\2")),
        ("/", "/ok/1", "/ok/2"),
    ),
    Behaviour(
        "spaces_around_a_link_are_removed",
        "WHATWG URL, basic URL parser",
        site(links("  /ok/1  ", "\x01/ok/2\x1f")),
        ("/", "/ok/1", "/ok/2"),
    ),
    Behaviour(
        "number_is_an_address",
        "WHATWG URL, IPv4 parser",
        site(links("http://{decimal}:{port}/ok")),
        ("/", "/ok"),
    ),
    Behaviour(
        "characters_of_paths_and_queries_are_escaped",
        "WHATWG URL, percent-encode sets",
        site(page("""<a href='/a b{c}é"^`?q="d" <e>#f g'>x</a><a href="/i?'j'|k\">x</a>""")),
        ("/", "/a%20b%7Bc%7D%C3%A9%22%5E%60?q=%22d%22%20%3Ce%3E", "/i?%27j%27|k"),
    ),
    Behaviour(
        "query_is_written_in_the_encoding_of_the_page",
        "WHATWG URL, query state",
        site(page(b'<a href="/\xe9?q=\xe9">x</a>', "Content-Type: text/html; charset=windows-1252")),
        ("/", "/%C3%A9?q=%E9"),
    ),
)

HTML_PAGES: Final = (
    Behaviour(
        "first_base_is_the_base",
        "HTML §4.2.3",
        site(page('<base target="x"><base href="/ok/"><base href="/no/"><a href="1">x</a>')),
        ("/", "/ok/1"),
    ),
    Behaviour(
        "character_references_in_attributes_are_resolved",
        "HTML §13.2.5.73",
        site(page('<a href="/ok?a=1&amp;b=2">x</a><a href="&#x2f;ok&sol;3">x</a><a href="/ok?a=1&copy=2">x</a>')),
        ("/", "/ok?a=1&b=2", "/ok/3", "/ok?a=1&copy=2"),
    ),
    Behaviour(
        "text_of_scripts_and_comments_has_no_links",
        "HTML §13.2.5",
        site(
            page(
                '<title><a href="/no/1"></title><!-- <a href="/no/2"> --><script>"<a href=/no/3>"</script>'
                '<textarea><a href="/no/4"></textarea><style><a href="/no/5"></style><a href="/ok">x</a>'
            )
        ),
        ("/", "/ok"),
    ),
    Behaviour(
        "areas_and_frames_lead_on",
        "HTML §4.8.14, §4.8.5, §16.3",
        site(page('<map><area href="/ok/1"></map><iframe src="/ok/2"></iframe>'), {"/f": page("x")}),
        ("/", "/ok/1", "/ok/2"),
    ),
    Behaviour(
        "meta_refresh_leads_on",
        "HTML §4.2.5.3",
        site(page("<meta http-equiv=Refresh content=\"3 ; URL = '/ok/1' no\">")),
        ("/", "/ok/1"),
    ),
    Behaviour(
        "attributes_need_no_quotes",
        "HTML §13.2.5.38",
        site(page("<A HREF=/ok/1>x</a><a/href='/ok/2'/>x</a><a title=\"a>b\" href = /ok/3 >x</a>")),
        ("/", "/ok/1", "/ok/2", "/ok/3"),
    ),
    Behaviour(
        "meta_charset_names_the_encoding",
        "HTML §13.2.3.2",
        site(page("<meta charset=shift_jis><title>テスト</title>".encode("shift_jis"), "Content-Type: text/html")),
        ("/",),
        titles={"/": "テスト"},
    ),
    Behaviour(
        "byte_order_mark_beats_the_charset",
        "Encoding §6, decode",
        site(page(b"\xef\xbb\xbf<title>caf\xc3\xa9</title>", "Content-Type: text/html; charset=windows-1252")),
        ("/",),
        titles={"/": "café"},
    ),
    Behaviour(
        "iso_8859_1_is_windows_1252",
        "Encoding §4.2",
        site(page(b"<title>\x80 5</title>", "Content-Type: text/html; charset=ISO-8859-1")),
        ("/",),
        titles={"/": "€ 5"},
    ),
    Behaviour(
        "utf_16_in_a_meta_is_utf_8",
        "HTML §13.2.3.2",
        site(page("<meta charset=utf-16le><title>café</title>", "Content-Type: text/html")),
        ("/",),
        titles={"/": "café"},
    ),
    Behaviour(
        "empty_elements_of_xhtml_hold_nothing",
        "HTML §14",
        site(page(XHTML, "Content-Type: application/xhtml+xml")),
        ("/", "/ok"),
    ),
)

TYPES: Final = (
    Behaviour(
        "page_without_a_type_is_sniffed",
        "MIME Sniffing §7.1",
        site(Answer(200, (), b'\n <!DOCTYPE html><p><a href="/ok">x</a>')),
        ("/", "/ok"),
    ),
    Behaviour(
        "unknown_type_is_sniffed",
        "MIME Sniffing §7",
        site(Answer(200, ("Content-Type: unknown/unknown",), b'<!-- x --><a href="/ok">x</a>')),
        ("/", "/ok"),
    ),
    Behaviour(
        "plain_text_has_no_links",
        "MIME Sniffing §7",
        site(Answer(200, (PLAIN,), b'<html><a href="/no">x</a>')),
        ("/",),
    ),
    Behaviour(
        "html_stays_html_whatever_it_begins_with",
        "MIME Sniffing §7",
        site(page('BZh <a href="/ok">x</a>')),
        ("/", "/ok"),
    ),
    Behaviour(
        "type_that_is_sent_twice_counts_once",
        "Fetch, extract a MIME type",
        site(page('<a href="/ok">x</a>', "Content-Type: text/html, text/html")),
        ("/", "/ok"),
    ),
    Behaviour(
        "last_of_two_types_counts",
        "Fetch, extract a MIME type",
        site(page('<a href="/ok">x</a>', PLAIN, "Content-Type: text/html")),
        ("/", "/ok"),
    ),
    Behaviour(
        "same_type_keeps_the_charset_before",
        "Fetch, extract a MIME type",
        site(page("<title>кот</title>".encode("koi8-r"), "Content-Type: text/html;charset=koi8-r, text/html;x=y")),
        ("/",),
        titles={"/": "кот"},
    ),
)

PROMISES: Final = (
    Behaviour(
        "redirect_to_a_closed_path_is_not_followed",
        "README, politeness",
        site(
            links("/a"),
            {"/a": redirect("/closed"), "/robots.txt": Answer(200, (PLAIN,), b"User-agent: *\nDisallow: /closed\n")},
        ),
        ("/", "/a"),
        ends={"/closed": "excluded robots"},
    ),
    Behaviour(
        "redirect_to_another_host_is_not_followed",
        "README, politeness",
        site(links("/a"), {"/a": redirect("{bystander}/redirect_to_another_host_is_not_followed")}),
        ("/", "/a"),
        left_out={"other_host": 1},
    ),
    Behaviour(
        "link_to_another_host_is_not_followed",
        "docs/command.md, --scope",
        site(links("/a", "{bystander}/link_to_another_host_is_not_followed")),
        ("/", "/a"),
        left_out={"other_host": 1},
    ),
    Behaviour(
        "chain_of_redirects_ends_after_ten",
        "docs/limits.md, MAX_HOPS",
        site(links("/h/1"), {f"/h/{hop}": redirect(f"/h/{hop + 1}") for hop in range(1, 14)}),
        ("/", *(f"/h/{hop}" for hop in range(1, 12))),
        left_out={"redirects": 1},
    ),
    Behaviour(
        "long_urls_are_refused",
        "docs/limits.md, scope.max_url_length",
        site(links("/" + "b" * 1900, "/" + "c" * 2100)),
        ("/", "/" + "b" * 1900),
        left_out={"url_length": 1},
    ),
    Behaviour(
        "repeated_segments_are_a_trap",
        "docs/limits.md, scope.traps.max_segment_repeats",
        site(links("/r/r/r/x", "/t/t/t/t/x")),
        ("/", "/r/r/r/x"),
        left_out={"trap": 1},
    ),
    Behaviour(
        "repeated_parameters_are_a_trap",
        "docs/limits.md, scope.traps.max_parameter_repeats",
        site(links("/p?a=1&a=1", "/q?a=1&a=1&a=1", "/r?a=1&a=2&a=3")),
        ("/", "/p?a=1&a=1", "/r?a=1&a=2&a=3"),
        left_out={"trap": 1},
    ),
)

URLS_AND_PAGES: Final = (*ADDRESSES, *HTML_PAGES, *TYPES, *PROMISES)
