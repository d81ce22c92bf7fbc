"""The protocol of the frontier (architecture §3) under every fault we can think of, at every step.

A Hypothesis state machine drives real owners, simulated workers, an operator and an engine that fails on command. After
every rule the promises of architecture §9.1 to §9.3 must hold; at the end everything runs undisturbed, and must come to
the same pages as a crawl that nothing ever happened to.

The default run is small and always the same. `ORB_MODEL_EXAMPLES=2000 ORB_MODEL_SEED=7 pytest -m slow` explores.
"""

import os
from dataclasses import replace
from functools import cache
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from shared.domain.frontier.commands import CommandKind
from tests.support.simulation.cluster import Cluster, Site
from tests.support.simulation.recrawl_invariants import RecrawlOperator
from tests.support.simulation.store import Database
from tests.support.simulation.web import Kind, Node
from tests.support.simulation.world import EPOCH_MS, Fault

_MAX_OWNERS = 3
_MAX_WORKERS = 3
_EXAMPLES = 220
_SHORT = 50
_RECRAWLS = 24
_STEPS = 25
_INTERVAL_S = 60.0
"""Between two fetches of a page, where pages are fetched again."""


@cache
def one_database() -> Database:
    return Database()


@st.composite
def sites(draw: st.DrawFn) -> Site:
    """A web of up to 18 URLs on up to 3 hosts, and how it is crawled."""
    n = draw(st.integers(1, 18))
    hosts = draw(st.integers(1, 3))
    kinds = st.sampled_from([Kind.PAGE] * 6 + list(Kind))
    nodes = tuple(
        Node(
            draw(st.integers(0, hosts - 1)),
            draw(kinds),
            tuple(draw(st.lists(st.integers(0, n - 1), max_size=5, unique=True))),
        )
        for _ in range(n)
    )
    return Site(
        nodes,
        seeds=tuple(draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=3, unique=True))),
        max_depth=draw(st.sampled_from([None, None, 1, 2, 3])),
        delay_s=draw(st.sampled_from([1.0, 1.0, 2.5, 0.0])),
        delays=draw(st.sampled_from([(), (), ((0, 3.0),), ((1, 2.0), (2, 5.0))])),
    )


class Protocol(RuleBasedStateMachine):
    """Rules are faults, operators and time; `step` lets the processes on, in an order Hypothesis picks."""

    heedless: ClassVar[bool] = False

    def __init__(self) -> None:
        super().__init__()
        self.cluster: Cluster | None = None
        self.failed = False

    @property
    def at(self) -> Cluster:
        assert self.cluster is not None
        return self.cluster

    @initialize(site=sites(), workers=st.integers(1, 2), batch=st.sampled_from([1, 3, 100]))
    def begin(self, site: Site, workers: int, batch: int) -> None:
        self.cluster = Cluster(one_database(), site)
        self.cluster.start_owner()
        for _ in range(workers):
            self.cluster.start_worker(batch=batch, heedless=self.heedless)
        self.cluster.create_crawl()
        self.cluster.world.run_for(0.5)

    # --- the passing of time ------------------------------------------------------------------------------------------

    @rule(choices=st.lists(st.integers(0, 11), min_size=1, max_size=30))
    def step(self, choices: list[int]) -> None:
        for choice in choices:
            if not self.at.world.open_gate(choice):
                self.at.world.advance(0.3)

    @rule(seconds=st.sampled_from([0.5, 1.5, 4.0, 12.0]))
    def work(self, seconds: float) -> None:
        self.at.world.run_for(seconds)

    @rule(seconds=st.sampled_from([0.5, 2.0, 10.0, 31.0]))
    def stand_still(self, seconds: float) -> None:
        self.at.world.advance(seconds)

    # --- processes ----------------------------------------------------------------------------------------------------

    @precondition(lambda self: sum(not sim.process.dead for sim in self.at.owners) < _MAX_OWNERS)
    @rule(loads_after_s=st.sampled_from([0.0, 0.0, 3.0, 40.0]))
    def take_over(self, loads_after_s: float) -> None:
        """By a master that may not have loaded the crawls yet."""
        self.at.start_owner(loads_after_s=loads_after_s)

    @precondition(lambda self: sum(not worker.process.dead for worker in self.at.workers) < _MAX_WORKERS)
    @rule(batch=st.sampled_from([1, 3, 100]))
    def start_worker(self, batch: int) -> None:
        self.at.start_worker(batch=batch, heedless=self.heedless)

    @precondition(lambda self: self.at.processes())
    @rule(choice=st.integers(0, 5))
    def kill(self, choice: int) -> None:
        every = self.at.processes()
        self.at.world.kill(every[choice % len(every)])

    @precondition(lambda self: self.at.processes())
    @rule(choice=st.integers(0, 5))
    def stop(self, choice: int) -> None:
        every = self.at.processes()
        every[choice % len(every)].stopped = True

    @precondition(lambda self: any(process.stopped for process in self.at.processes()))
    @rule(choice=st.integers(0, 5))
    def go_on(self, choice: int) -> None:
        every = [process for process in self.at.processes() if process.stopped]
        every[choice % len(every)].stopped = False

    @precondition(lambda self: self.at.processes())
    @rule(choice=st.integers(0, 5), seconds=st.sampled_from([3.0, 33.0, 65.0]))
    def oversleep(self, choice: int, seconds: float) -> None:
        """A process is stopped in the middle of whatever it does, while everybody else works on."""
        busy = [worker.process for worker in self.at.workers if worker.busy and not worker.process.dead]
        every = busy if busy and choice % 2 else self.at.processes()
        sleeper = every[choice // 2 % len(every)]
        sleeper.stopped = True
        self.at.world.run_for(seconds)
        sleeper.stopped = False

    @precondition(lambda self: any(not sim.process.dead for sim in self.at.owners))
    @rule(seconds=st.sampled_from([0.0, 3.0, 33.0]))
    def overtake(self, seconds: float) -> None:
        """The owner is stopped, another takes over, and the first goes on as if nothing had happened."""
        sleeper = next(sim.process for sim in reversed(self.at.owners) if not sim.process.dead)
        sleeper.stopped = True
        self.at.start_owner()
        self.at.world.run_for(seconds)
        sleeper.stopped = False

    @precondition(lambda self: any(not sim.process.dead for sim in self.at.owners))
    @rule(choice=st.integers(0, 2), seconds=st.sampled_from([-60.0, 60.0, 0.0]))
    def step_clock(self, choice: int, seconds: float) -> None:
        """The wall clock of an owner is wrong from now on, or right again."""
        living = [sim for sim in self.at.owners if not sim.process.dead]
        living[choice % len(living)].clock.off_s = seconds
        self.at.database.rules.trusted = False

    # --- engines ------------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.at.processes())
    @rule(choice=st.integers(0, 5), fault=st.sampled_from(list(Fault)))
    def fail(self, choice: int, fault: Fault) -> None:
        every = self.at.processes()
        every[choice % len(every)].fault = fault

    @precondition(lambda self: self.at.world.late)
    @rule(choice=st.integers(0, 3))
    def appear(self, choice: int) -> None:
        late = self.at.world.late
        late.pop(choice % len(late))()

    @precondition(lambda self: self.at.broker.visits)
    @rule(choice=st.integers(0, 5))
    def redeliver(self, choice: int) -> None:
        self.at.broker.redeliver(choice)

    @precondition(lambda self: self.at.broker.history)
    @rule(choice=st.integers(0, 50))
    def duplicate(self, choice: int) -> None:
        history = self.at.broker.history
        subject, data = history[-1 - choice % len(history)]
        self.at.broker.publish(subject, data, f"copy-{len(history)}")

    @precondition(lambda self: self.at.broker.visits)
    @rule(choice=st.integers(0, 5))
    def spoil(self, choice: int) -> None:
        """A shard cannot be read any more, begun or not."""
        self.at.broker.spoil(choice)

    @precondition(lambda self: self.at.broker.visits)
    @rule(choice=st.integers(0, 5), times=st.sampled_from([1, 2, 5]))
    def wear_out(self, choice: int, times: int) -> None:
        """So often as twice splits a shard and five times buries a URL."""
        self.at.tell_unreadable(choice, times)

    @precondition(lambda self: any(not worker.process.dead for worker in self.at.workers))
    @rule(choice=st.integers(0, 2), times=st.sampled_from([1, 2, 5]))
    def break_visits(self, choice: int, times: int) -> None:
        """Visits of a worker fail by its own error, so often as splits a shard or buries a URL."""
        living = [worker for worker in self.at.workers if not worker.process.dead]
        living[choice % len(living)].errors = times

    @rule(full=st.booleans())
    def fill(self, full: bool) -> None:
        """The database's disk, or it has room again."""
        self.at.database.full = full

    @rule(kind=st.sampled_from(["outcome", "discovery"]))
    def garbage(self, kind: str) -> None:
        self.at.broker.publish(f"reports.0.{kind}", b"\xc1", f"garbage-{len(self.at.broker.history)}")

    @precondition(lambda self: not self.at.lossy)
    @rule()
    def lose_the_broker(self) -> None:
        self.at.wipe_broker()

    @precondition(lambda self: not self.at.lossy)
    @rule(messages=st.integers(1, 20), more=st.integers(0, 30))
    def put_the_store_back(self, messages: int, more: int) -> None:
        """It comes back older, and is written to before owners look at it."""
        self.at.put_broker_back(messages, more)

    # --- operators ----------------------------------------------------------------------------------------------------

    @rule()
    def retry_failed(self) -> None:
        self.at.command(CommandKind.RETRY_FAILED)

    @rule()
    def replay_letters(self) -> None:
        self.at.command(CommandKind.REPLAY, letter=0)

    @rule(letter=st.integers(1, 4))
    def replay_letter(self, letter: int) -> None:
        self.at.command(CommandKind.REPLAY, letter=letter)

    @rule(letter=st.integers(0, 4))
    def discard_letters(self, letter: int) -> None:
        self.at.command(CommandKind.DISCARD, letter=letter)

    @rule(choice=st.integers(0, 2))
    def delete_seed(self, choice: int) -> None:
        self.at.delete_seed(choice)

    @rule(choice=st.integers(0, 2))
    def add_seed(self, choice: int) -> None:
        self.at.add_seed(choice)

    @rule(host=st.integers(0, 2), delay_ms=st.sampled_from([0, 2_500, 20_000]))
    def delay_host(self, host: int, delay_ms: int) -> None:
        self.at.put_policy(f"h{host}.test", delay_s=delay_ms / 1000)

    @rule(host=st.integers(0, 2), slots=st.sampled_from([0, 1, 3]))
    def limit_slots(self, host: int, slots: int) -> None:
        self.at.put_policy(f"h{host}.test", slots=slots)

    @rule(host=st.integers(0, 2), seconds=st.sampled_from([0, 5, 20, 300]))
    def block_host(self, host: int, seconds: int) -> None:
        until_ms = EPOCH_MS + round((self.at.world.now + seconds) * 1000) if seconds else 0
        self.at.put_policy(f"h{host}.test", until_ms=until_ms)

    @precondition(lambda self: self.at.crawl_id < 3)
    @rule(move=st.booleans())
    def delete_and_create(self, move: bool) -> None:
        """With `move` the pool's workers die, owners send out what they last had room for, and the new crawl is of
        another pool: nobody will ever pull from the old one."""
        if move:
            for worker in self.at.workers:
                self.at.world.kill(worker.process)
            self.at.world.run_for(2.0)
        self.at.delete_crawl()
        if move:
            self.at.move_pool()
        self.at.create_crawl()

    @rule(choice=st.integers(0, 2))
    def ask_finished(self, choice: int) -> None:
        self.at.ask_finished(choice)

    # --- promises -----------------------------------------------------------------------------------------------------

    @invariant()
    def promises(self) -> None:
        if self.cluster is not None:
            self.failed = True
            self.look()
            self.failed = False

    def look(self) -> None:
        """Fail if a promise is broken."""
        self.at.assert_kept()

    def settle(self) -> None:
        """Let the crawl come to its end without faults."""
        self.at.settle()

    def teardown(self) -> None:
        if self.cluster is None:
            return
        try:
            if not self.failed:
                self.settle()
                self.cluster.assert_kept()
        finally:
            self.cluster.close()


class RecrawlProtocol(Protocol):
    """The same rules over a crawl whose pages are fetched again, and operators who exclude hosts and change its scope.

    It never finishes. In the end all that is excluded is taken back, and every stored page must be fetched again.
    """

    def __init__(self) -> None:
        super().__init__()
        self.operator: RecrawlOperator | None = None

    @property
    def by(self) -> RecrawlOperator:
        assert self.operator is not None
        return self.operator

    @initialize(
        site=sites(), workers=st.integers(1, 2), batch=st.sampled_from([1, 3, 100]), adaptive=st.booleans()
    )  # fmt: skip
    def begin(self, site: Site, workers: int, batch: int, adaptive: bool = False) -> None:
        site = replace(site, recrawl_s=_INTERVAL_S, max_depth=None, adaptive=adaptive)
        self.cluster = Cluster(one_database(), site)
        self.operator = RecrawlOperator(self.cluster)
        self.cluster.start_owner()
        for _ in range(workers):
            self.cluster.start_worker(batch=batch)
        self.cluster.create_crawl()
        self.cluster.world.run_for(0.5)

    @rule(host=st.integers(0, 2))
    def exclude(self, host: int) -> None:
        self.by.exclude(f"h{host}.test")

    @rule()
    def lift(self) -> None:
        self.by.lift()

    @rule(hosts=st.sets(st.integers(0, 2), max_size=2))
    def rescope(self, hosts: set[int]) -> None:
        self.by.rescope(*(f"h{host}.test" for host in sorted(hosts)))

    @rule()
    def pass_an_interval(self) -> None:
        """Let pages fall due and be fetched again."""
        self.at.world.run_for(_INTERVAL_S * 1.5)

    @rule()
    def falls_due_unseen(self) -> None:
        """Let pages fall due while no process runs, and start another owner."""
        self.at.world.advance(_INTERVAL_S)
        if sum(not sim.process.dead for sim in self.at.owners) < _MAX_OWNERS:
            self.at.start_owner()

    def look(self) -> None:
        self.by.look()
        super().look()

    def settle(self) -> None:
        self.by.settle()


def profile(examples: int, **more: Any) -> settings:
    return settings(
        max_examples=examples,
        stateful_step_count=_STEPS,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        print_blob=True,
        **more,
    )


# The default test's time is that of its examples, and of shrinking one only when it fails.
@pytest.mark.long
@pytest.mark.smoke
@pytest.mark.timeout(600)
def test_every_promise_is_kept_whatever_fails(short: bool) -> None:
    run_state_machine_as_test(Protocol, settings=profile(_SHORT if short else _EXAMPLES, derandomize=True))


@pytest.mark.timeout(600)
def test_recrawl_keeps_every_promise_whatever_fails(short: bool) -> None:
    examples = _RECRAWLS // 4 if short else _RECRAWLS
    run_state_machine_as_test(RecrawlProtocol, settings=profile(examples, derandomize=True))


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_every_promise_is_kept_whatever_fails_at_length() -> None:
    start = int(os.environ.get("ORB_MODEL_SEED", "1"))
    print(f"ORB_MODEL_SEED={start}")
    machine = seed(start)(Protocol)
    run_state_machine_as_test(machine, settings=profile(int(os.environ.get("ORB_MODEL_EXAMPLES", "1000"))))
