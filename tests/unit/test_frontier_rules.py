"""The frontier's pure rules: ranks, least depth, streams told apart, terms."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.domain.frontier.states import (
    LEVEL_MS,
    Fence,
    Merge,
    Position,
    UrlState,
    merge_link,
    rank_of,
    same_stream,
)
from shared.domain.frontier.store_model import Counters
from shared.domain.ids import (
    MAX_PARTITIONS,
    Partition,
    Term,
    numbered,
    partition_of_id,
    term_of,
)

times = st.integers(0, 2**42)
depths = st.integers(0, 32_767)
priorities = st.integers(-100, 100)
positions = st.builds(Position, *[st.integers(0, 2**40)] * 5)


@given(times, depths, priorities, st.integers(1, 1000))
def test_a_nearer_a_wanted_and_an_older_url_each_come_first(at: int, depth: int, priority: int, more: int) -> None:
    rank = rank_of(at, depth, priority)
    assert rank < rank_of(at, depth + more, priority)
    assert rank < rank_of(at, depth, priority - more)
    assert rank < rank_of(at + more, depth, priority)


@given(times, depths, priorities)
def test_an_hour_of_waiting_weighs_as_much_as_a_level(at: int, depth: int, priority: int) -> None:
    assert rank_of(at, depth + 1, priority) == rank_of(at + LEVEL_MS, depth, priority)
    assert rank_of(at, depth, priority + 1) == rank_of(at - LEVEL_MS, depth, priority)


@given(st.sampled_from(UrlState), depths, depths, st.none() | depths)
def test_a_link_no_nearer_changes_nothing(state: UrlState, known: int, found: int, limit: int | None) -> None:
    merge = merge_link(state, known, found, limit)
    assert (merge is Merge.NOTHING) == (found >= known)


@given(st.sampled_from(UrlState), depths, depths, st.none() | depths)
def test_only_done_pages_are_requeued_where_their_links_may_matter(
    state: UrlState, known: int, found: int, limit: int | None
) -> None:
    again = merge_link(state, known, found, limit) is Merge.QUEUE_AGAIN
    assert again == (state is UrlState.DONE and limit is not None and found < known and found < limit)


@given(st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=1, max_size=20), st.none() | st.integers(0, 6))
def test_last_fetched_depth_does_not_depend_on_link_order(found: list[tuple[int, bool]], limit: int | None) -> None:
    """However links and fetches interleave, what the page led to was last seen with the least depth that matters."""
    state, depth, fetched = UrlState.QUEUED, found[0][0], None
    for at, fetch_now in found:
        match merge_link(state, depth, at, limit):
            case Merge.QUEUE_AGAIN:
                state, depth = UrlState.QUEUED, at
            case Merge.LOWER_DEPTH:
                depth = at
            case Merge.NOTHING:
                pass
        if fetch_now and state is UrlState.QUEUED:
            state, fetched = UrlState.DONE, depth
    if state is UrlState.QUEUED:
        fetched = depth
    least = min(at for at, _ in found)
    assert depth == least
    assert fetched is not None
    if limit is not None and least < limit:
        assert fetched == least, "its outlinks are within the limit, by way of the nearest link"


@given(positions, st.integers(1, 2**40), st.integers(1, 2**40))
def test_another_stream_and_one_behind_are_told_apart_from_ours(position: Position, created: int, last: int) -> None:
    ahead = max(position.outcome_seq, position.discovery_seq)
    fits = same_stream(position, created, last)
    if position.stream_created_ns == 0:
        assert fits == (ahead == 0), "a position without a stream can only be a beginning"
    else:
        assert fits == (position.stream_created_ns == created and last >= ahead)


@given(positions, st.integers(0, 2**40), st.integers(0, 2**40))
def test_a_moved_position_moves_one_subject(position: Position, sequence: int, at_ns: int) -> None:
    outcome = position.moved("outcome", sequence, at_ns)
    discovery = position.moved("discovery", sequence, at_ns)
    assert (outcome.of("outcome"), outcome.of("discovery")) == (sequence, position.discovery_seq)
    assert (discovery.of("outcome"), discovery.of("discovery")) == (position.outcome_seq, sequence)
    assert (outcome.outcome_ns, discovery.discovery_ns) == (at_ns, at_ns)
    assert outcome.stream_created_ns == discovery.stream_created_ns == position.stream_created_ns


epochs = st.integers(0, 2**18)
revisions = st.integers(0, 2**44 - 1)


@given(epochs, revisions, epochs, revisions)
def test_terms_order_as_their_pairs(epoch: int, revision: int, epoch2: int, revision2: int) -> None:
    assert (term_of(epoch, revision) < term_of(epoch2, revision2)) == ((epoch, revision) < (epoch2, revision2))
    assert term_of(epoch, revision) < 2**63, "it fits its column"


@pytest.mark.parametrize("revision", [-1, 2**44])
def test_a_revision_out_of_range_is_no_term(revision: int) -> None:
    with pytest.raises(ValueError, match="revision"):
        term_of(1, revision)


@given(st.integers(0, 2**50), st.integers(0, MAX_PARTITIONS - 1), st.integers(0, 2**50))
def test_numbers_of_partitions_never_meet(sequence: int, partition: int, other: int) -> None:
    number = numbered(sequence, Partition(partition))
    assert partition_of_id(number) == partition
    assert (number == numbered(other, Partition(partition))) == (sequence == other)


def test_a_fence_advances_by_one_under_the_same_term() -> None:
    assert Fence(Partition(1), Term(2), 3).next() == Fence(Partition(1), Term(2), 4)


def test_the_identities_of_counters() -> None:
    counters = Counters(discovered=9, queued=1, leased=2, done=3, failed=1, excluded=1, accepted=7, new=4, known=1)
    assert (counters.url_drift(), counters.link_drift()) == (1, 2)
