"""A worker played by hand: each of its messages is sent when a test says so."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from shared.domain.frontier.states import UrlEnd
from shared.domain.ids import Fingerprint, partition_of_id
from shared.domain.web.url import fingerprint
from shared.ports.broker import VisitMessage
from shared.wire.messages import (
    Answer,
    Begin,
    Discoveries,
    Extend,
    Go,
    Link,
    Origin,
    Outcome,
    Record,
    UrlOutcome,
    UrlShard,
    WorkerStatus,
    decode_answer,
    decode_shard,
    encode,
)
from tests.support.database.url_rows import URLS
from tests.support.simulation.cluster import PARTITION, Cluster

T = TypeVar("T")


class ManualWorker:
    """One worker process of a cluster, without a will of its own."""

    def __init__(self, cluster: Cluster, name: str = "hand") -> None:
        self.cluster = cluster
        self.world = cluster.world
        self.process = self.world.process(name)
        self.broker = cluster.broker.client(self.process)
        self.n = 0
        self.totals: dict[int, tuple[int, int]] = {}

    def wait(self, work: Coroutine[Any, Any, T], max_s: float = 60.0) -> T:
        """The result, everybody working meanwhile."""
        task = self.begun(work)
        until = self.world.now + max_s
        while not task.done() and self.world.now < until:
            self.world.run_for(0.05)
        assert task.done(), "nothing came of it"
        return task.result()

    def begun(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        return self.world.spawn(self.process, work, "hand")

    def pull(self, max_count: int = 1) -> tuple[VisitMessage, UrlShard]:
        """The next shard, as soon as there is one."""

        async def pull() -> VisitMessage:
            while True:
                for message in await self.broker.pull_visits("default", max_count, 5.0):
                    return message

        self.heard()
        message = self.wait(pull())
        return message, decode_shard(message.data)

    def heard(self) -> None:
        """Tell every owner that there is room for many shards."""
        for sim in self.cluster.owners:
            sim.room.worker_reported(WorkerStatus(self.process.name, "default", 50, 0), self.world.now)
            if sim.owner.ownership is not None:
                sim.owner.ownership.work.notify()

    async def ask(self, lease: int, question: Begin | Extend) -> Answer:
        return decode_answer(await self.broker.ask(partition_of_id(lease), encode(question), 3.0))

    def begin(self, shard: UrlShard, delivery: int, holder: str | None = None) -> Answer:
        question = Begin(shard.lease, delivery, holder or self.process.name, shard.lease_hash)
        return self.wait(self.ask(shard.lease, question))

    def go(self, shard: UrlShard, delivery: int, holder: str | None = None) -> Go:
        answer = self.begin(shard, delivery, holder)
        assert isinstance(answer, Go), answer
        return answer

    def report(
        self,
        shard: UrlShard,
        grant: int,
        done: dict[str, int] | None = None,
        *,
        final: bool = False,
        left: tuple[str, ...] = (),
        apply: bool = True,
    ) -> None:
        """An outcome: URL -> status, its pages' items stored before. Unless `apply` is off, owners then have time to
        apply it."""
        self.n += 1
        results = [
            UrlOutcome(
                fingerprint(url), UrlEnd.ANSWERED, 1, status, record=Record("s", self.n, 1) if status == 200 else None
            )
            for url, status in (done or {}).items()
        ]
        self.cluster.broker.items.update(
            (shard.crawl, result.fingerprint) for result in results if result.record is not None
        )
        data = encode(
            Outcome(
                shard.lease, shard.crawl, grant, shard.host_id, results,
                [fingerprint(url) for url in left], final, 0,
            )
        )  # fmt: skip
        self.publish("outcome", data)
        if apply:
            self.world.run_for(0.1)

    def discover(self, crawl: int, links: dict[str, int], *, via: str | None = None, host_id: int = 0) -> bytes:
        """Links by depth; returns the message."""
        data = self.discoveries(crawl, links, via=via, host_id=host_id)
        self.publish("discovery", data)
        self.world.run_for(0.1)
        return data

    def discoveries(self, crawl: int, links: dict[str, int], *, via: str | None = None, host_id: int = 0) -> bytes:
        """Return the next message of links by depth, not yet published."""
        n, total = self.totals.get(crawl, (0, 0))
        self.totals[crawl] = n + 1, total + len(links)
        origin = Fingerprint(b"") if via is None else fingerprint(via)
        found = [Link(url, depth) for url, depth in links.items()]
        return encode(
            Discoveries(crawl, 1, self.process.name, n + 1, total + len(links), [Origin(host_id, origin, found)])
        )

    def publish(self, kind: str, data: bytes, name: str | None = None) -> int:
        self.n += 1
        sequence = self.cluster.broker.publish(
            f"reports.{PARTITION}.{kind}", data, name or f"{self.process.name}.{self.n}"
        )
        return sequence

    def states(self) -> dict[str, tuple[int, str | None]]:
        return {
            row[0]: (row[1], row[2]) for row in self.cluster.database.rows(f"SELECT url, state, reason FROM {URLS} u")
        }

    def open_where(self, may: Callable[[str], bool]) -> None:
        """Let everybody on who is not at a gate that is held shut, until all wait for time or such a gate."""
        for _ in range(1000):
            self.world.loop.pump()
            gate = next((gate for gate in self.world.gates if may(gate.what)), None)
            if gate is None:
                return
            self.world.gates.remove(gate)
            gate.opened.set_result(None)


Start = Callable[..., tuple[Cluster, ManualWorker]]
"""`start(n)`: an owner and a crawl of n seeds on one host, no worker but the hand."""


def leases(cluster: Cluster) -> list[int]:
    """The leases that are stored."""
    return [row[0] for row in cluster.database.rows("SELECT lease_id FROM leases")]


def shard_of(hand: ManualWorker) -> UrlShard:
    """The next shard."""
    return hand.pull()[1]
