"""Grants: one holder at a time, each grant after the end of the one before, whoever asks in whatever order."""

from hypothesis import given
from hypothesis import strategies as st

from api.frontier.leases import (
    HeldByAnother,
    Leases,
    MayGrant,
    NoSuchLease,
    OldDelivery,
    SameHolder,
)
from shared.domain.frontier.store_model import LeasedUrl, LeaseRow
from shared.domain.ids import CrawlId, Fingerprint, HostId, LeaseId, Revision

GRANT_S = 30.0
L = LeaseId(1)


def row(number: int = 1, urls: int = 3, *, grants: int = 0, host: int = 1) -> LeaseRow:
    order = tuple(Fingerprint(bytes([i]) * 16) for i in range(urls))
    held = {fingerprint: LeasedUrl(f"http://a/{i}", 2, 2, 1, 0, 0, 0, i) for i, fingerprint in enumerate(order)}
    return LeaseRow(
        LeaseId(number), CrawlId(1), Revision(1), HostId(host), "a", 0, "default", 0, order, held, grants=grants
    )


def test_a_lease_nobody_knows_is_gone() -> None:
    leases = Leases(grant_s=GRANT_S)
    assert leases.begin(L, 1, "w", 0.0) == NoSuchLease()
    assert leases.extendable(L, 1, "w", 0.0) is None


def test_the_first_asker_may_have_it_and_asking_again_is_harmless() -> None:
    leases = Leases(grant_s=GRANT_S)
    held = leases.add(row(), 0.0)
    assert leases.begin(L, 1, "w", 1.0) == MayGrant(held, expired=False)
    grant = leases.granted(held, 1, "w", 1.0)
    assert (grant.number, grant.until) == (1, 31.0)
    assert leases.begin(L, 1, "w", 5.0) == SameHolder(held)
    leases.extend(held, 5.0)
    assert held.live(34.9)
    assert not held.live(35.0)
    leases.extend(held, 2.0)
    assert held.live(34.9), "a late answer never shortens a grant"


def test_new_delivery_waits_for_grant_end_and_supersedes_older() -> None:
    leases = Leases(grant_s=GRANT_S)
    held = leases.add(row(), 0.0)
    leases.granted(held, 2, "w", 0.0)
    assert leases.begin(L, 3, "v", 10.0) == HeldByAnother(20.0)
    assert leases.begin(L, 2, "v", 10.0) == HeldByAnother(20.0), "the same delivery in other hands"
    assert leases.begin(L, 3, "w", 10.0) == HeldByAnother(20.0), "the same worker after a redelivery is another visit"
    assert leases.begin(L, 1, "v", 10.0) == OldDelivery()
    assert leases.begin(L, 3, "v", 30.0) == MayGrant(held, expired=True)


def test_an_expired_grant_cannot_be_extended_nor_an_earlier_one() -> None:
    leases = Leases(grant_s=GRANT_S)
    held = leases.add(row(), 0.0)
    leases.granted(held, 1, "w", 0.0)
    assert leases.extendable(L, 1, "w", 29.0) is held
    assert leases.extendable(L, 1, "v", 29.0) is None
    assert leases.extendable(L, 1, "w", 30.0) is None
    leases.granted(held, 2, "v", 40.0)
    assert leases.extendable(L, 1, "w", 41.0) is None
    assert leases.extendable(L, 2, "v", 41.0) is held


def test_a_new_owner_takes_an_earlier_grant_as_given_at_its_claim() -> None:
    leases = Leases(grant_s=GRANT_S)
    held = leases.take_over(row(grants=4), 100.0, ended=False)
    assert leases.begin(L, 9, "v", 129.9) == HeldByAnother(130.0 - 129.9)
    assert leases.extendable(L, 3, "w", 110.0) is None
    assert leases.extendable(L, 4, "w", 110.0) is held, "its holder makes itself known"
    assert leases.extendable(L, 4, "v", 111.0) is None, "and is then the only one"
    assert leases.begin(L, 9, "v", 130.0) == MayGrant(held, expired=True)
    assert leases.granted(held, 9, "v", 130.0).number == 5


def test_ungranted_lease_is_free_and_dead_workers_hold_nothing() -> None:
    leases = Leases(grant_s=GRANT_S)
    fresh = leases.take_over(row(1), 100.0, ended=False)
    ended = leases.take_over(row(2, grants=1), 100.0, ended=True)
    assert leases.begin(LeaseId(1), 1, "w", 100.0) == MayGrant(fresh, expired=False)
    assert leases.begin(LeaseId(2), 1, "w", 100.0) == MayGrant(ended, expired=True)
    assert not ended.live(100.0)


def test_settling_shrinks_and_frees() -> None:
    leases = Leases(grant_s=GRANT_S)
    held = leases.add(row(), 0.0)
    leases.add(row(2, host=7), 0.0)
    assert {each.row.host_id for each in leases} == {1, 7}
    left = {held.row.order[1]: held.row.urls[held.row.order[1]]}
    leases.update(L, left, freed=False)
    assert held.remaining() == [1]
    leases.lower(L, held.row.order[1], 1)
    leases.lower(L, held.row.order[1], 5)
    leases.lower(L, held.row.order[0], 0)
    assert [(url.depth, url.least) for url in held.row.urls.values()] == [(2, 1)]
    leases.update(L, {}, freed=True)
    assert leases.get(L) is None
    assert [held.row.lease_id for held in leases.of_crawl(CrawlId(1))] == [2]


asks = st.lists(
    st.tuples(
        st.sampled_from(["begin", "extend"]),
        st.sampled_from(["v", "w", "x"]),
        st.integers(1, 4),
        st.floats(0, 20, allow_nan=False),
    ),
    max_size=80,
)


@given(asks, st.booleans(), st.booleans())
def test_two_holders_never_hold_at_once(
    story: list[tuple[str, str, int, float]], taken_over: bool, granted_before: bool
) -> None:
    """From the workers' side: each believes in its grant from the answer on, for as long as the owner said."""
    leases = Leases(grant_s=GRANT_S)
    grants = int(granted_before)
    held = leases.take_over(row(grants=grants), 0.0, ended=False) if taken_over else leases.add(row(), 0.0)
    believed: dict[tuple[str, int], float] = {}
    if taken_over and granted_before:
        believed["w", 1] = GRANT_S
    now, numbers = 0.0, [held.row.grants]
    for verb, who, delivery, pause in story:
        now += pause
        if verb == "begin":
            match leases.begin(L, delivery, who, now):
                case MayGrant():
                    grant = leases.granted(held, delivery, who, now)
                    numbers.append(grant.number)
                    believed[who, grant.number] = now + GRANT_S
                case SameHolder():
                    leases.extend(held, now)
                    assert held.grant is not None
                    believed[who, held.grant.number] = now + GRANT_S
                case _:
                    pass
        else:
            for holder, number in [key for key in believed if key[0] == who and believed[key] > now]:
                if leases.extendable(L, number, holder, now) is not None:
                    leases.extend(held, now)
                    believed[holder, number] = now + GRANT_S
        assert sum(until > now for until in believed.values()) <= 1
    assert numbers == sorted(set(numbers)), "grants are numbered upwards, none twice"
