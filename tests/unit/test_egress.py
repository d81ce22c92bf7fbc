"""No address that is not public unicast space is let through, in whatever form it is written."""

from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shared.domain.crawl.spec_parse import parse_spec
from shared.domain.explain.sentences import why
from shared.domain.frontier.states import UrlState
from shared.domain.reads.views import FetchView
from shared.domain.web.addresses import parse_address
from tests.unit.test_rulings import view
from workers.fetch.egress import EgressRules

RULES = EgressRules()


def listed(text: str) -> list[str]:
    return text.split()


DENIED_V4 = listed("""
    0.0.0.0 0.1.2.3 10.0.0.1 100.64.0.1 100.100.100.200 100.127.255.255 127.0.0.1 127.255.255.254 169.254.169.254
    169.254.1.1 168.63.129.16 172.16.0.1 172.31.255.255 192.0.0.1 192.0.2.1 192.88.99.1 192.168.1.1 198.18.0.1
    198.51.100.1 203.0.113.1 224.0.0.1 239.255.255.255 240.0.0.1 255.255.255.255
""")
DENIED_V6 = listed("""
    :: ::1 ::2 100::1 64:ff9b:1::1 2001:db8::1 2001:2::1 3fff::1 5f00::1 fc00::1 fd00:ec2::254 fd12:3456::1 fe80::1
    febf::1 fec0::1 ff02::1 4000::1 8000::1
""")
PUBLIC = listed(
    "1.1.1.1 8.8.8.8 9.255.255.255 100.63.255.255 172.32.0.1 192.0.1.1 223.255.255.255 2606:4700::1 2a00::1"
)


def carriers(inner: IPv4Address) -> list[IPv6Address]:
    """Every IPv6 form that carries `inner`."""
    number = int(inner)
    mapped, compatible, nat64 = 0xFFFF << 32, 0, 0x64FF9B << 96
    isatap, isatap_universal = (0x2A00 << 112) | (0x5EFE << 32), (0x2A00 << 112) | (0x02005EFE << 32)
    forms = [IPv6Address(prefix | number) for prefix in (mapped, compatible, nat64, isatap, isatap_universal)]
    # 6to4, then Teredo with it as the client (obfuscated) and as the server.
    forms.append(IPv6Address((0x2002 << 112) | (number << 80)))
    forms.append(IPv6Address((0x20010000 << 96) | (0x01010101 << 64) | (number ^ 0xFFFFFFFF)))
    forms.append(IPv6Address((0x20010000 << 96) | (number << 64) | (0x01010101 ^ 0xFFFFFFFF)))
    return forms


@pytest.mark.parametrize("text", DENIED_V4 + DENIED_V6)
def test_special_addresses_are_denied(text: str) -> None:
    assert RULES.verdict(ip_address(text))


@pytest.mark.parametrize("text", PUBLIC)
def test_public_addresses_are_open(text: str) -> None:
    assert RULES.verdict(ip_address(text)) is None


@pytest.mark.parametrize("text", DENIED_V4)
def test_an_ipv4_address_hidden_in_an_ipv6_form_is_denied_like_itself(text: str) -> None:
    for form in carriers(IPv4Address(text)):
        assert RULES.verdict(form), form


@given(st.ip_addresses(v=4))
def test_a_carried_address_is_judged_like_the_address_itself(inner: IPv4Address) -> None:
    for form in carriers(inner):
        if int(form) > 1:
            assert bool(RULES.verdict(form)) == bool(RULES.verdict(inner)), form


isatap = st.builds(
    lambda network, universal, inner: IPv6Address(
        int(network) >> 64 << 64 | universal << 57 | 0x5EFE << 32 | int(inner)
    ),
    st.ip_addresses(v=6),
    st.booleans(),
    st.ip_addresses(v=4),
)


@given(st.ip_addresses() | isatap)
@example(ip_address("fd00::5efe:808:808"))
@example(ip_address("fe80::200:5efe:808:808"))
@example(ip_address("ff02::5efe:808:808"))
def test_what_is_not_global_by_the_registries_is_never_open(address: IPv4Address | IPv6Address) -> None:
    if not address.is_global and not (isinstance(address, IPv6Address) and address.ipv4_mapped):
        carried = isinstance(address, IPv6Address) and (address.sixtofour or address.teredo)
        assert carried or RULES.verdict(address)


@given(st.ip_addresses())
def test_allow_opens_exactly_what_it_names(address: IPv4Address | IPv6Address) -> None:
    assert EgressRules(allow=(ip_network(address),)).verdict(address) is None
    elsewhere = EgressRules(allow=(ip_network("198.18.0.0/15"),))
    if address not in ip_network("198.18.0.0/15") and not isinstance(address, IPv6Address):
        assert elsewhere.verdict(address) == RULES.verdict(address)


def test_allowing_an_ipv4_network_opens_its_mapped_form() -> None:
    rules = EgressRules(allow=(ip_network("127.0.0.0/8"),))
    assert rules.verdict(ip_address("::ffff:127.0.0.1")) is None
    assert rules.verdict(ip_address("::ffff:10.0.0.1"))


def test_the_explanation_names_the_address_and_the_option() -> None:
    line = RULES.explain(ip_address("169.254.169.254"), 80)
    assert line is not None
    assert "169.254.169.254" in line
    assert "cloud metadata" in line
    assert "--allow-net 169.254.169.254" in line


@pytest.mark.parametrize(
    ("text", "address"), [("[::1]", "::1"), ("fe80::1%eth0", "fe80::1"), ("127.0.0.1", "127.0.0.1")]
)
def test_addresses_are_read_with_brackets_and_zones(text: str, address: str) -> None:
    assert parse_address(text) == ip_address(address)


def test_a_name_is_not_an_address() -> None:
    assert parse_address("example.org") is None


class _Closed:
    """Closes one endpoint."""

    def covers(self, address: IPv4Address | IPv6Address, port: int) -> bool:
        return (str(address), port) == ("127.0.0.1", 4222)

    def names(self, host: str, port: int) -> bool:
        return (host, port) == ("nats-1", 4222)


def bounded(allow: str, bound: str) -> EgressRules:
    return EgressRules(
        allow=(ip_network(allow),), bound=tuple(ip_network(each) for each in bound.split()), closed=_Closed()
    )


@pytest.mark.parametrize(
    ("allow", "bound", "address", "opened"),
    [
        ("0.0.0.0/0", "", "127.0.0.1", False),
        ("0.0.0.0/0", "127.0.0.0/8", "127.0.0.1", True),
        ("127.0.0.0/8", "0.0.0.0/0", "127.0.0.1", True),
        ("10.0.0.0/8", "127.0.0.0/8", "127.0.0.1", False),
        ("0.0.0.0/0", "127.0.0.0/8", "10.0.0.1", False),
        ("0.0.0.0/0", "127.0.0.0/8", "::ffff:127.0.0.1", True),
        ("::/0", "127.0.0.0/8", "::ffff:127.0.0.1", False),
        ("::/0", "127.0.0.0/8", "::1", False),
        ("0.0.0.0/0", "0.0.0.0/0", "0.0.0.0", False),
        ("::/0", "::/0", "::", False),
        ("::/0", "::/0", "::ffff:0.0.0.0", False),
        ("0.0.0.0/0", "", "8.8.8.8", True),
    ],
)
def test_spec_opens_only_what_the_worker_allows(allow: str, bound: str, address: str, opened: bool) -> None:
    assert (bounded(allow, bound).verdict(ip_address(address)) is None) == opened


@pytest.mark.parametrize("address", ["127.0.0.1", "::ffff:127.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::"])
def test_closed_endpoint_stays_closed_in_every_form(address: str) -> None:
    rules = EgressRules(
        allow=(ip_network("0.0.0.0/0"), ip_network("::/0")),
        bound=(ip_network("0.0.0.0/0"), ip_network("::/0")),
        closed=_Closed(),
    )
    line = rules.explain(ip_address(address), 4222)
    assert line is not None
    assert "the cluster itself" in line
    assert rules.explain(ip_address(address), 4223) is None


def test_denied_address_names_the_side_that_closes_it() -> None:
    by_worker = bounded("0.0.0.0/0", "10.0.0.0/8").explain(ip_address("127.0.0.1"), 80)
    by_spec = bounded("10.0.0.0/8", "0.0.0.0/0").explain(ip_address("127.0.0.1"), 80)
    assert by_worker is not None
    assert by_spec is not None
    assert "--allow-net of this worker does not" in by_worker
    assert "egress.allow in the spec opens it" in by_spec


def test_name_of_a_closed_endpoint_is_refused_behind_a_proxy() -> None:
    rules = bounded("0.0.0.0/0", "0.0.0.0/0")
    assert rules.explain_name("nats-1", 4222) is not None
    assert rules.explain_name("nats-1", 80) is None


@pytest.mark.parametrize(
    ("rules", "advice"),
    [
        (bounded("0.0.0.0/0", "0.0.0.0/0"), "What can be done: no setting opens it; use another address."),
        (EgressRules(), "What can be done: allow an internal network: --allow-net CIDR"),
    ],
    ids=["cluster", "internal"],
)
def test_advice_for_a_denied_address_fits_the_reason(rules: EgressRules, advice: str) -> None:
    denied = rules.explain(ip_address("127.0.0.1"), 4222)
    fetch = FetchView(1, 0, False, "egress_denied", denied, 0, 0, None, b"", None, None, None, None, None, 0, ())
    failed = view(UrlState.FAILED, reason="egress_denied", fetch=fetch)
    sentences = why(failed, parse_spec({"seeds": ["http://a.test/"]}), 1, retry="orb ctl retry-failed docs")
    assert sentences[-1].startswith(advice)
    assert "internal or the cluster's own" in sentences[0]
