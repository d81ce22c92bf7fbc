"""Commands act in their order with outcomes, and the judge objects where a rule that keeps the order is removed."""

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from shared.adapters.sql.frontier import apply
from shared.adapters.sql.frontier import discoveries as found
from shared.domain.frontier.commands import CommandKind
from shared.domain.frontier.states import UrlState
from shared.domain.web.url import fingerprint
from tests.conformance.test_commands_in_progress import N, all_failed, by_fingerprint, in_the_middle, step_until, url
from tests.support.simulation.cluster import Cluster, Site
from tests.support.simulation.manual_worker import Start
from tests.support.simulation.store import Database
from tests.support.simulation.web import Kind, Node

FAILED = UrlState.FAILED
Race = Callable[[Start], Cluster]


def mark_failed_urls_that_are_found_again(patch: pytest.MonkeyPatch) -> None:
    """Undo `sql: retry failed URLs that are found again meanwhile`: mark whatever a link leads to."""
    merge = found._merge

    def merge_all(*args: Any) -> set[Any]:
        merge(*args)
        return set()

    patch.setattr(found, "_merge", merge_all)


class _NoMarks:
    def run(self, *args: Any) -> None:
        pass


def mark_nothing(patch: pytest.MonkeyPatch) -> None:
    """Let a command touch what an outcome wrote behind it."""
    patch.setattr(apply, "MARK", _NoMarks())


def found_again_behind_a_retry(start: Start) -> Cluster:
    cluster, hand = all_failed(start)
    cluster.command(CommandKind.RETRY_FAILED)
    in_the_middle(cluster, CommandKind.RETRY_FAILED)
    last = by_fingerprint(N)[-1]
    hand.publish("discovery", hand.discoveries(cluster.crawl_id, {last: 0}))
    cluster.world.run_for(2.0)
    return cluster


def failed_behind_a_retry(start: Start) -> Cluster:
    cluster, hand = start(N)
    _, shard = hand.pull()
    grant = hand.go(shard, 1).grant
    *others, last = by_fingerprint(N)
    hand.report(shard, grant, dict.fromkeys(others, 404))
    cluster.command(CommandKind.RETRY_FAILED)
    in_the_middle(cluster, CommandKind.RETRY_FAILED)
    hand.report(shard, grant, {last: 404}, apply=False)
    step_until(cluster, lambda: hand.states()[last][0] == FAILED)
    cluster.world.run_for(2.0)
    return cluster


def given_back_behind_a_deletion(start: Start) -> Cluster:
    cluster, hand = start(15)
    _, shard = hand.pull()
    grant = hand.go(shard, 1).grant
    last = max((each.url for each in shard.urls), key=fingerprint)
    cluster.judge.taken_back[cluster.crawl_id] = set(map(url, range(15)))
    cluster.command(CommandKind.DELETE_SEEDS, all=True, places=[])
    in_the_middle(cluster, CommandKind.DELETE_SEEDS)
    hand.report(shard, grant, {}, left=(last,))
    cluster.world.run_for(2.0)
    return cluster


@pytest.mark.parametrize("broken", [False, True])
@pytest.mark.parametrize(
    ("race", "rule", "objection"),
    [
        (found_again_behind_a_retry, mark_failed_urls_that_are_found_again, "are failed since before it"),
        (failed_behind_a_retry, mark_nothing, "failed behind every retry in progress"),
        (given_back_behind_a_deletion, mark_nothing, "was with a worker behind its deletion"),
    ],
)
def test_command_acts_in_its_order_with_outcomes(
    start: Start,
    monkeypatch: pytest.MonkeyPatch,
    race: Race,
    rule: Callable[[pytest.MonkeyPatch], None],
    objection: str,
    broken: bool,
) -> None:
    if broken:
        rule(monkeypatch)
    violations = race(start).world.violations
    assert [text for text in violations if objection in text] if broken else violations == []


def walk(database: Database, rng: Random) -> list[str]:
    """Let a small crawl run while failed URLs are retried and seeds given again; the judge's objections."""
    n = rng.randint(4, 14)
    kinds = list(Kind)
    nodes = [Node(rng.randrange(2), rng.choice(kinds), links=(rng.randrange(n), rng.randrange(n))) for _ in range(n)]
    cluster = Cluster(database, Site(tuple(nodes), seeds=tuple(rng.sample(range(n), min(n, 6))), delay_s=0.0))
    try:
        cluster.start_owner()
        cluster.start_worker(batch=3)
        cluster.create_crawl()
        cluster.world.run_for(rng.choice([1.0, 12.0]))
        for _ in range(25):
            match rng.randrange(4):
                case 0:
                    cluster.command(CommandKind.RETRY_FAILED)
                case 1:
                    cluster.add_seed(rng.randrange(6))
                case 2:
                    cluster.world.run_for(rng.choice([0.5, 4.0]))
                case _:
                    for _ in range(rng.randint(1, 20)):
                        if not cluster.world.open_gate(rng.randrange(8)):
                            cluster.world.advance(0.3)
        return list(cluster.world.violations)
    finally:
        cluster.close()


@pytest.mark.long
@pytest.mark.parametrize(("broken", "walks"), [(False, 40), (True, 500)])
def test_random_walks_find_a_command_out_of_its_order(
    database: Database, monkeypatch: pytest.MonkeyPatch, broken: bool, walks: int
) -> None:
    if broken:
        mark_failed_urls_that_are_found_again(monkeypatch)
    rng = Random(7)
    objections = next((found for _ in range(walks) if (found := walk(database, rng))), [])
    assert broken == any("are failed since before it" in text for text in objections), objections
