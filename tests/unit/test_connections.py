"""Who has a place among the connections of a port, and who gives it up for whom."""

import resource

import pytest

from shared.runtime.connections import AcceptedConnection, ConnectionLimit, within_files


class Knocking:
    """Enters connections by name; notes whose were ended."""

    def __init__(self, max_count: int, spare: int) -> None:
        self.places = ConnectionLimit(max_count, spare)
        self.ended: list[str] = []

    def enter(self, name: str) -> AcceptedConnection | None:
        return self.places.enter(lambda: self.ended.append(name))

    def let_in(self, name: str) -> AcceptedConnection:
        connection = self.enter(name)
        assert connection is not None
        assert len(self.places) <= self.places.limit + self.places.spare
        return connection


def test_those_that_may_stay_stay_however_many_come() -> None:
    knocking = Knocking(max_count=2, spare=2)
    kept = [knocking.let_in(name) for name in "ab"]
    assert not any(connection.beyond for connection in kept)
    for number in range(100):
        assert knocking.let_in(f"flood {number}").beyond
    assert knocking.ended == [f"flood {number}" for number in range(98)], "the oldest of the silent, one after another"
    assert (len(knocking.places), knocking.places.refused) == (4, 100)


def test_port_without_lasting_places_refuses_only_what_finds_no_place() -> None:
    """Each scrape of a worker's metrics counted as refused, and the log warned of it every minute."""
    knocking = Knocking(max_count=0, spare=2)
    for name in ("scrape 1", "scrape 2", "scrape 3"):
        knocking.let_in(name).left()
    assert knocking.places.refused == 0
    for name in "abc":
        knocking.let_in(name)
    assert (knocking.places.refused, knocking.ended) == (1, ["a"])


def test_one_that_has_asked_keeps_its_place_until_it_is_answered() -> None:
    knocking = Knocking(max_count=1, spare=2)
    knocking.let_in("a")
    asking, silent = knocking.let_in("asking"), knocking.let_in("silent")
    asking.requested()
    other = knocking.let_in("other")
    assert knocking.ended == ["silent"]
    silent.left()
    other.requested()
    assert knocking.enter("too many") is None
    asking.left()
    assert knocking.let_in("after it").beyond
    assert knocking.ended == ["silent"]


def test_a_place_that_is_left_twice_is_one_place() -> None:
    knocking = Knocking(max_count=1, spare=1)
    first = knocking.let_in("a")
    first.left()
    first.left()
    assert not knocking.let_in("b").beyond
    assert knocking.let_in("c").beyond


def test_a_process_holds_no_more_than_it_may_have_files(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: told.append(limits))
    for soft, hard, max_count, raised in (
        (256, 4096, 1000, [(1512, 4096)]),
        (4096, 4096, 1000, []),
        (256, 1024, 512, [(1024, 1024)]),
        (256, resource.RLIM_INFINITY, 1000, [(1512, resource.RLIM_INFINITY)]),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, 1000, []),
        (256, 256, 1, []),
    ):
        monkeypatch.setattr(resource, "getrlimit", lambda _, limits=(soft, hard): limits)
        told.clear()
        assert (within_files(1000, 512), told) == (max_count, raised)
