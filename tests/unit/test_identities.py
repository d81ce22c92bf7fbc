"""From where and until when an identity is accepted, and how networks and certificates are named."""

import pytest

from shared.domain.ops.access import ApiKey, IdentityKind, Role, digest_of, new_key, opens
from shared.domain.ops.identities import (
    IdentityRefusal,
    Peer,
    PeerCertificate,
    certificate_name,
    network_of,
    refusal,
    within,
)

NOW_MS = 1_900_000_000_000
OURS = PeerCertificate.of(bytes(32), [("DNS", "TF.example.org"), ("URI", "spiffe://Prod/tf"), ("DirName", "x")])


def kept(**bounds: object) -> ApiKey:
    return ApiKey("0" * 16, "ci", Role.VIEWER, bytes(32), 0, "test", **bounds)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("bounds", "peer", "expected"),
    [
        ({}, Peer(), None),
        ({"expires_at_ms": NOW_MS + 1}, Peer(), None),
        ({"expires_at_ms": NOW_MS}, Peer(), IdentityRefusal.EXPIRED),
        ({"networks": ("10.1.0.0/16",)}, Peer("10.1.255.9"), None),
        ({"networks": ("10.1.0.0/16",)}, Peer("::ffff:10.1.0.9"), None),
        ({"networks": ("10.1.0.0/16",)}, Peer("10.2.0.1"), IdentityRefusal.NETWORK),
        ({"networks": ("10.1.0.0/16",)}, Peer(None), IdentityRefusal.NETWORK),
        ({"networks": ("10.1.0.0/16",)}, Peer("testclient"), IdentityRefusal.NETWORK),
        ({"networks": ("fe80::/10",)}, Peer("fe80::1%eth0"), None),
        ({"networks": ("10.0.0.0/128",)}, Peer("10.0.0.0"), IdentityRefusal.NETWORK),
        ({"networks": ("10.0.0.0/128", "10.1.0.0/16")}, Peer("10.1.0.9"), None),
        ({"certificate": "dns:tf.example.org"}, Peer(certificate=OURS), None),
        ({"certificate": "uri:spiffe://Prod/tf"}, Peer(certificate=OURS), None),
        ({"certificate": "sha256:" + "0" * 64}, Peer(certificate=OURS), None),
        ({"certificate": "dns:example.org"}, Peer(certificate=OURS), IdentityRefusal.CERTIFICATE),
        ({"certificate": "dns:tf.example.org"}, Peer("10.1.0.1"), IdentityRefusal.CERTIFICATE),
    ],
)
def test_an_identity_is_accepted_within_all_its_bounds(
    bounds: dict[str, object], peer: Peer, expected: IdentityRefusal | None
) -> None:
    assert refusal(kept(**bounds), peer, NOW_MS) is expected


def test_no_key_opens_an_identity_that_a_certificate_proves() -> None:
    key_id, key = new_key()
    stored = ApiKey(key_id, "tf", Role.ADMIN, digest_of(key), 0, "test")
    assert opens(key, stored)
    proved = ApiKey(key_id, "tf", Role.ADMIN, digest_of(key), 0, "test", kind=IdentityKind.CERTIFICATE)
    assert not opens(key, proved)


@pytest.mark.parametrize(
    ("given", "canonical"),
    [("10.1.0.0/16", "10.1.0.0/16"), ("10.1.2.3", "10.1.2.3/32"), ("2001:DB8::/32", "2001:db8::/32")],
)
def test_a_network_has_one_form(given: str, canonical: str) -> None:
    assert network_of(given) == canonical


@pytest.mark.parametrize(
    "given",
    [
        "10.1.2.3/16",
        "0x0a.1.0.0/16",
        "10.1",
        "2130706433/8",
        "::ffff:10.0.0.0/104",
        "a",
        "",
        "fe80::1%eth0",
        "fe80::1%a,::/0",
    ],
)
def test_what_is_no_network_is_refused(given: str) -> None:
    with pytest.raises(ValueError, match=r"expected a network|write IPv4"):
        network_of(given)


def test_an_address_is_in_no_network_of_the_other_family() -> None:
    assert not within("10.0.0.1", ("::/0",))
    assert not within("::1", ("0.0.0.0/0",))


@pytest.mark.parametrize(
    ("given", "canonical"),
    [
        ("sha256:" + ":".join(["AB"] * 32), "sha256:" + "ab" * 32),
        ("dns:TF.Example.org", "dns:tf.example.org"),
        ("uri:spiffe://Prod/tf", "uri:spiffe://Prod/tf"),
        ("email:Ops@Example.org", "email:ops@example.org"),
    ],
)
def test_a_certificate_name_has_one_form(given: str, canonical: str) -> None:
    assert certificate_name(given) == canonical


@pytest.mark.parametrize(
    "given",
    ["", "sha256:", "sha256:" + "0" * 63, "sha1:" + "0" * 40, "cn:tf", "dns:", "dns:a b", "tf"]
    + [kind + character for kind in ("dns:a", "uri:a", "email:a@b") for character in "\0\x1f\x7f\xa0\u0416"]
    + ["email:\0@b", "dns:a:b", "email:a@b@c"],
)
def test_what_names_no_certificate_is_refused(given: str) -> None:
    with pytest.raises(ValueError, match="expected sha256"):
        certificate_name(given)
