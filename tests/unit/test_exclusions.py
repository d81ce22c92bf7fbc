"""What an exclusion covers, and that no other spelling of a URL evades it."""

from ipaddress import ip_address

import pytest

from shared.domain.crawl.exclusions import (
    MAX_TARGET_CHARS,
    NO_EXCLUSIONS,
    Exclusions,
    TargetKind,
    TargetRefused,
    kind_of,
    partitions_with,
    read_target,
    stored_target,
)
from shared.domain.web.url import locate, partition_of

HOST, PREFIX, NETWORK = TargetKind.HOST, TargetKind.PREFIX, TargetKind.NETWORK


@pytest.mark.parametrize(
    ("text", "kind", "canonical"),
    [
        ("example.org", HOST, "example.org"),
        ("EXAMPLE.Org.", HOST, "example.org"),
        ("example.org:8080", HOST, "example.org:8080"),
        ("example.org.:8080", HOST, "example.org:8080"),
        ("bücher.example", HOST, "xn--bcher-kva.example"),
        ("\uff45xample.org", HOST, "example.org"),
        ("[::1]:8080", HOST, "[::1]:8080"),
        ("https://Example.org", PREFIX, "https://example.org/"),
        ("https://example.org./a/../%70rivate/?x#y", PREFIX, "https://example.org/private/?x"),
        ("http://example.org:80/a", PREFIX, "http://example.org/a"),
        ("192.0.2.7", NETWORK, "192.0.2.7/32"),
        ("0xC0.0.2.7", NETWORK, "192.0.2.7/32"),
        ("192.0.2.0/24", NETWORK, "192.0.2.0/24"),
        ("2001:DB8::1", NETWORK, "2001:db8::1/128"),
        ("[2001:db8:0::1]", NETWORK, "2001:db8::1/128"),
        ("2001:db8::/32", NETWORK, "2001:db8::/32"),
        ("::ffff:192.0.2.0/120", NETWORK, "192.0.2.0/24"),
        ("::ffff:c000:207", NETWORK, "192.0.2.7/32"),
    ],
)
def test_target_has_one_canonical_form(text: str, kind: TargetKind, canonical: str) -> None:
    target = read_target(text)
    assert (target.kind, target.text) == (kind, canonical)
    assert read_target(canonical) == stored_target(canonical) == target
    assert kind_of(canonical) == kind


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("", "write a host"),
        (" example.org", "write a host"),
        ("*.example.org", "covers its subdomains"),
        (".example.org", "covers its subdomains"),
        ("user@example.org", "write a host"),
        ("https://user:secret@example.org/", "write a host"),
        ("ftp://example.org/", "write a host"),
        ("example.org/private", "write a host"),
        ("example.org?x", "write a host"),
        ("example.org:99999", "write a host"),
        ("Example.org:80", "write example.org for all its ports and subdomains, or https://example.org/ for ports 80"),
        ("example.org.:0443", "write example.org for"),
        ("192.0.2.7:443", "write 192.0.2.7 for"),
        ("[::1]:80", "write [::1] for"),
        ("a b", "write a host"),
        ("fe80::1%eth0", "write a host"),
        ("192.0.2.7/24", "did you mean 192.0.2.0/24?"),
        ("a" * (MAX_TARGET_CHARS + 1), "shorter prefix"),
        ("https://example.org/" + "文" * 226, "shorter prefix"),
        ("https://example.org/?" + " " * 700 + "x", "shorter prefix"),
    ],
)
def test_text_that_names_no_target_is_refused_with_a_hint(text: str, hint: str) -> None:
    with pytest.raises(TargetRefused) as refused:
        read_target(text)
    assert hint in refused.value.hint


@pytest.mark.parametrize(
    ("target", "covered", "free"),
    [
        (
            "example.org",
            (
                "http://example.org/",
                "https://EXAMPLE.ORG./a?b",
                "https://example.org:8443/",
                "https://www.example.org/",
                "https://a.b.example.org:8080/x",
            ),
            ("https://notexample.org/", "https://example.org.evil.test/", "https://example.com/", "https://org/"),
        ),
        (
            "example.org:8080",
            ("http://example.org:8080/", "http://Example.org.:8080/"),
            ("http://example.org/", "http://example.org:8081/", "http://www.example.org:8080/"),
        ),
        (
            "bücher.example",
            ("https://xn--bcher-kva.example/", "https://BÜCHER.example/", "https://x.bücher.example/"),
            (),
        ),
        (
            "https://example.org/private/",
            (
                "https://example.org/private/",
                "http://example.org/private/x",
                "https://example.org./%70rivate/x",
                "https://example.org/a/../private/x",
                "https://example.org:443/private/x?y",
            ),
            (
                "https://example.org/private",
                "https://example.org/Private/",
                "https://example.org/",
                "https://www.example.org/private/",
                "https://example.org:8443/private/",
                "https://example.org/?/private/",
            ),
        ),
        (
            "192.0.2.0/24",
            ("http://192.0.2.7/", "http://192.0.2.255:8080/", "http://0xC0000207/", "http://[::ffff:192.0.2.7]/"),
            ("http://192.0.3.7/", "http://192.0.2.example/", "http://[2001:db8::1]/"),
        ),
        (
            "2001:db8::/32",
            ("http://[2001:DB8:0:0::7]/", "http://[2001:db8::7]:81/"),
            ("http://[2001:db9::7]/",),
        ),
    ],
)
def test_no_other_spelling_evades_an_exclusion(target: str, covered: tuple[str, ...], free: tuple[str, ...]) -> None:
    exclusions = Exclusions(1, [target])
    canonical = read_target(target).text
    for expected, urls in ((canonical, covered), (None, free)):
        for url in urls:
            location = locate(url)
            assert location is not None, url
            assert exclusions.first(location.url, location.host) == expected, url
            assert expected is None or exclusions.touches(location.host)


def test_whole_host_is_told_from_some_of_its_urls() -> None:
    exclusions = Exclusions(1, ["a.test", "https://b.test/x", "https://b.test/y", "10.0.0.0/8"])
    assert exclusions.of_host("www.a.test") == "a.test"
    assert (exclusions.of_host("b.test"), exclusions.touches("b.test")) == (None, True)
    assert exclusions.first("http://b.test/yes", "b.test") == "https://b.test/y"
    assert (exclusions.of_host("10.1.2.3:80"), exclusions.touches("c.test")) == ("10.0.0.0/8", False)
    assert exclusions
    assert not NO_EXCLUSIONS


@pytest.mark.parametrize(
    ("address", "covered"),
    [
        ("192.0.2.7", True),
        ("192.0.3.7", False),
        ("::ffff:192.0.2.7", True),
        ("64:ff9b::192.0.2.7", True),
        ("2002:c000:0207::1", True),
        ("::ffff:192.0.3.7", False),
        ("2001:db8:1::5", True),
        ("2001:db8:2::5", False),
    ],
)
def test_address_is_covered_as_itself_and_as_the_one_it_carries(address: str, covered: bool) -> None:
    exclusions = Exclusions(1, ["192.0.2.0/24", "2001:db8:1::/48", "0.0.0.1"])
    assert (exclusions.of_address(ip_address(address)) is not None) == covered


def test_target_with_hosts_of_several_domains_concerns_all_partitions() -> None:
    def partitions(text: str) -> list[int]:
        return list(partitions_with(read_target(text), 8))

    assert partitions("www.example.co.uk") == [partition_of("example.co.uk", 8)]
    assert partitions("https://example.org/a") == [partition_of("example.org", 8)]
    assert partitions("example.org:8080") == [partition_of("example.org", 8)]
    assert partitions("co.uk") == partitions("org") == partitions("10.0.0.0/8") == list(range(8))


@pytest.mark.parametrize(
    ("target", "url"),
    [
        ("https://example.org/private/", "https://example.org/%70rivate/a?q=100%"),
        ("https://example.org/~user/", "https://example.org/%7Euser/100%"),
        ("https://example.org/a%2fb/", "https://example.org/a%2fb/?%"),
        ("https://example.org/100%/%7euser/", "https://example.org/100%/~user/a"),
    ],
)
def test_stray_percent_evades_no_prefix(target: str, url: str) -> None:
    exclusions = Exclusions(1, [read_target(target).text])
    place = locate(url)
    assert place is not None
    assert exclusions.first(place.url, place.host) is not None
    other = locate("https://example.org/public/100%")
    assert other is not None
    assert exclusions.first(other.url, other.host) is None


@pytest.mark.parametrize(
    ("target", "host"),
    [
        ("amazonaws.com", "b.s3.amazonaws.com"),
        ("us-east-1.amazonaws.com", "b.s3.dualstack.us-east-1.amazonaws.com"),
        ("kobe.jp", "b.ward.kobe.jp"),
        ("jp", "city.kobe.jp"),
        ("个人.hk", "b.example.个人.hk"),
    ],
)
def test_host_with_public_suffixes_below_it_concerns_all_partitions(target: str, host: str) -> None:
    whole = read_target(target)
    assert Exclusions(1, [whole.text]).of_host(read_target(host).host) == whole.text
    assert list(partitions_with(whole, 64)) == list(range(64))


def test_target_is_as_long_in_canonical_form_as_is_allowed() -> None:
    text = "https://example.org/" + "文" * 225
    longest = text + "x" * (MAX_TARGET_CHARS - len(read_target(text).text))
    assert len(read_target(longest).text) == MAX_TARGET_CHARS
    with pytest.raises(TargetRefused, match=f"has {MAX_TARGET_CHARS + 1} characters in canonical form"):
        read_target(longest + "x")


def test_stored_target_over_the_limit_stays_in_force() -> None:
    text = "https://example.org/" + "%E6%96%87" * 226
    exclusions = Exclusions(1, [text])
    assert exclusions.first(f"{text}/x", "example.org") == text
    assert not exclusions.unread


def test_stored_target_with_a_default_port_covers_what_it_did() -> None:
    exclusions = Exclusions(1, ["example.org:443"])
    assert exclusions.of_host("example.org:443") == "example.org:443"
    assert exclusions.of_host("example.org") is None
    assert not exclusions.unread


def test_unreadable_target_is_kept_apart_and_disables_no_other() -> None:
    exclusions = Exclusions(1, ["a.test", "regex:.*", "https://b.test/x", "10.0.0.0/99", "http://[", "c.test"])
    assert list(exclusions.unread) == ["regex:.*", "10.0.0.0/99", "http://["]
    assert [exclusions.of_host(host) for host in ("a.test", "c.test")] == ["a.test", "c.test"]
    assert exclusions.first("https://b.test/xy", "b.test") == "https://b.test/x"
