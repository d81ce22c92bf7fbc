"""Places between the chunks of a command."""

from hypothesis import given
from hypothesis import strategies as st

from shared.domain.frontier.command_progress import HOSTS_A_CHUNK, behind, behind_host, hosts_of_chunk, place_of
from shared.domain.frontier.store_model import CommandRun
from shared.domain.ids import CrawlId, HostId, Partition

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


def test_chunk_of_all_seeds_calls_back_a_bounded_number_of_hosts() -> None:
    """A crawl of 30,000 shards without a worker was called back in one transaction."""
    hosts = {HostId(n): f"h{n}.test" for n in range(1, 3 * HOSTS_A_CHUNK)}
    run = _deletion(True, after=behind(5, b"\x01" * 16))
    assert hosts_of_chunk(run, hosts) == set(range(5, 5 + HOSTS_A_CHUNK))
    assert hosts_of_chunk(_deletion(True, after=behind_host(3 * HOSTS_A_CHUNK)), hosts) == set()


def test_chunk_of_named_seeds_calls_back_their_hosts() -> None:
    hosts = {HostId(1): "a.test", HostId(2): "b.test"}
    run = _deletion(False, ("b.test", b"1"), ("c.test", b"2"))
    assert hosts_of_chunk(run, hosts) == {2}


def _deletion(whole: bool, *places: tuple[str, bytes], after: int = 0) -> CommandRun:
    return CommandRun(
        "d", CrawlId(1), "delete_seeds", {"all": whole, "places": list(places)}, Partition(0), after=after
    )
