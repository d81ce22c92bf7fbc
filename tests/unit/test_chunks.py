"""Places between the chunks of a command."""

from hypothesis import given
from hypothesis import strategies as st

from shared.adapters.sql.chunks import behind, behind_host, place_of

hosts = st.integers(1, 2**62)
fingerprints = st.binary(min_size=16, max_size=16)


@given(hosts, fingerprints.filter(any), hosts, fingerprints)
def test_a_place_is_found_again_and_places_have_the_order_of_rows(
    host: int, fingerprint: bytes, other: int, another: bytes
) -> None:
    assert place_of(behind(host, fingerprint)) == (host, fingerprint)
    assert (behind(host, fingerprint) < behind(other, another)) == ((host, fingerprint) < (other, another))
    assert behind(host, fingerprint) < behind_host(host)
    assert place_of(behind_host(host)) == (host + 1, b"")


def test_a_command_begins_before_every_row() -> None:
    assert place_of(0) == (0, b"")
