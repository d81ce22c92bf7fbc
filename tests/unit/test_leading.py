"""What a leader decides: the epoch, who counts as an owner; and what a master makes of its assignments."""

from hypothesis import given
from hypothesis import strategies as st

from api.leader.leader import epoch_after, owners_in
from api.members.partition_owners import StartOwner, StopOwner, owner_changes
from shared.domain.ids import Partition, Term, term_of
from shared.ports.coordinator import Entry
from shared.wire.keys import MemberRecord, PartitionRecord

ME = MemberRecord("m1", "1", started_at_ms=100)
OTHER = MemberRecord("m2", "1", started_at_ms=70)


def entry(revision: int) -> Entry:
    return Entry("k", b"", revision, revision)


# --- the epoch --------------------------------------------------------------------------------------------------------


def test_an_epoch_that_both_know_stays() -> None:
    assert epoch_after(3, 3, term_of(3, 70), 70) == 3
    assert epoch_after(3, 3, Term(0), 1) == 3


def test_a_coordinator_without_an_epoch_or_with_another_one_was_replaced() -> None:
    assert epoch_after(3, None, Term(0), 9) == 4
    assert epoch_after(3, 2, Term(0), 9) == 4
    assert epoch_after(3, 5, Term(0), 9) == 6, "then it was the database that is of an earlier time"


def test_coordinator_restored_within_epoch_is_known_by_higher_terms() -> None:
    assert epoch_after(3, 3, term_of(3, 5000), 1000) == 4


@given(
    st.integers(0, 50), st.none() | st.integers(0, 50), st.integers(0, 50), st.integers(0, 9999), st.integers(0, 9999)
)
def test_terms_given_under_the_epoch_are_newer_than_any_claimed(
    stored: int, found: int | None, newest_epoch: int, newest_revision: int, revision: int
) -> None:
    newest = term_of(newest_epoch, newest_revision)
    epoch = epoch_after(stored, found, newest, revision)
    assert epoch >= stored
    assert term_of(epoch, revision + 1) > newest
    assert epoch_after(epoch, epoch, newest, revision) == epoch, "what was put right stays"


# --- who owns ---------------------------------------------------------------------------------------------------------


def test_an_assignment_of_another_epoch_or_another_process_is_none() -> None:
    assigned = {
        Partition(0): PartitionRecord("m1", 2, 100),
        Partition(1): PartitionRecord("m1", 1, 100),
        Partition(2): PartitionRecord("m1", 2, 50),
        Partition(3): PartitionRecord("m3", 2, 10),
        Partition(4): PartitionRecord("m2", 2, 70),
    }
    assert owners_in(assigned, {"m1": ME, "m2": OTHER}, 2) == {Partition(0): "m1", Partition(4): "m2"}


def test_a_master_starts_what_is_its_own_and_stops_what_is_anothers() -> None:
    assigned = {
        Partition(0): (PartitionRecord("m1", 2, 100), entry(8)),
        Partition(1): (PartitionRecord("m2", 2, 70), entry(9)),
        Partition(2): (PartitionRecord("m1", 2, 50), entry(7)),
        Partition(9): (PartitionRecord("m1", 2, 100), entry(7)),
    }
    assert list(owner_changes(assigned, {}, ME, 8)) == [
        StartOwner(Partition(0), term_of(2, 8)),
        StopOwner(Partition(1), term_of(2, 9)),
        StopOwner(Partition(2), term_of(2, 7)),
    ]


def test_entries_of_the_same_or_an_older_term_and_absent_ones_change_nothing() -> None:
    """So a coordinator that was wiped, or restored from a backup, stops no owner."""
    seen = {Partition(0): term_of(2, 8), Partition(1): term_of(2, 8), Partition(2): term_of(2, 8)}
    assigned = {
        Partition(0): (PartitionRecord("m1", 2, 100), entry(8)),
        Partition(1): (PartitionRecord("m2", 2, 70), entry(5)),
    }
    assert list(owner_changes(assigned, seen, ME, 8)) == []
    assert list(owner_changes({Partition(1): (PartitionRecord("m2", 3, 70), entry(1))}, seen, ME, 8)) == [
        StopOwner(Partition(1), term_of(3, 1))
    ]
