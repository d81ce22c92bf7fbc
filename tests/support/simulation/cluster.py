"""A simulated cluster around the real owners: one partition, a broker, a database, workers, a web, an operator."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import msgspec

from api.crawls.finished_check import FinishedCheck, finished
from api.crawls.seed_messages import publish_seeds
from api.frontier.capacity import BudgetReservation, PoolCapacity
from api.frontier.dispatch_crawls import DispatchCrawl, DispatchCrawls
from api.frontier.owner import Owner
from api.frontier.ownership import FrontierSettings
from shared.adapters.sql.catalog import host_policies
from shared.adapters.sql.engine import stored_crawls
from shared.domain.crawl.exclusions import NO_EXCLUSIONS, Exclusions
from shared.domain.crawl.recrawl_spec import Recrawl, RecrawlPolicy
from shared.domain.crawl.scope import CompiledScope
from shared.domain.crawl.spec import CrawlSpec, Politeness, Retry, Scope, Seed, encode_spec
from shared.domain.frontier.commands import CommandKind
from shared.domain.frontier.crawl_rows import CrawlRow
from shared.domain.frontier.states import CrawlState
from shared.domain.ids import CrawlId, Partition, Revision, Term
from shared.domain.ops.host_policies import HostBlock, HostPolicySpec, limits_of
from shared.domain.reads.declared import Actor
from shared.domain.web.url import fingerprint, host_of
from shared.ports.store import Store
from shared.wire.messages import Command, Malformed, ShardUnreadable, WorkerStatus, decode_shard, encode
from shared.wire.subjects import command, queued_visit, report
from tests.support.simulation.archive import SimArchive
from tests.support.simulation.broker import ACK_WAIT_S, NOISE, SimBroker, Visit
from tests.support.simulation.invariants import Judge
from tests.support.simulation.store import Database, store_of
from tests.support.simulation.web import Node, SimWeb
from tests.support.simulation.worker import VISITS, CrawlView, SimWorker, Watch
from tests.support.simulation.world import EPOCH_MS, Process, SimClock, World

SETTINGS: Final = FrontierSettings(partitions=1, linger_s=0.0, ack_wait_s=ACK_WAIT_S)
PARTITION: Final = Partition(0)
LONGEST_S: Final = 1500.0
_OPERATOR: Final = Actor("0" * 16, "operator", "r")
REQUESTS_A_VERSION: Final = 2
"""After so many requests of it a page is another one, where pages are fetched again."""


@dataclass(frozen=True)
class Site:
    """What is crawled, and how. `delays`: robots.txt's crawl-delay by host. `recrawl_s`: the interval after
    which stored pages are fetched again (0: never); they change after some requests. `adaptive`: it is the longest one,
    and workers report every link with the present time as its `lastmod`."""

    nodes: tuple[Node, ...]
    seeds: tuple[int, ...] = (0,)
    max_depth: int | None = None
    delay_s: float = 1.0
    delays: tuple[tuple[int, float], ...] = ()
    recrawl_s: float = 0.0
    adaptive: bool = False


@dataclass(eq=False)
class SimOwner:
    """An owner process: the real `Owner`, with its own view of crawls and workers."""

    process: Process
    term: Term
    crawls: DispatchCrawls
    room: PoolCapacity
    owner: Owner
    store: Store
    clock: SimClock


class Cluster:
    """Everything that runs. Breaches of promises gather in `world.violations`."""

    def __init__(self, database: Database, site: Site) -> None:
        database.reset()
        self.database = database
        self.site = site
        self.world = World()
        self.broker = SimBroker(self.world)
        self.web = SimWeb(self.world, site.nodes, dict(site.delays), database.rules)
        self.web.versions = REQUESTS_A_VERSION if site.recrawl_s else 0
        self.watch = Watch(self.world)
        self.archive = SimArchive(self.world)
        self.judge = Judge(self.world, database, self.web, self.broker.items)
        self.owners: list[SimOwner] = []
        self.workers: list[SimWorker] = []
        self.views: dict[int, CrawlView] = {}
        self.operator = self.world.process("operator")
        self.store = store_of(self.world, self.operator, database)
        self.crawl_id = CrawlId(0)
        self.pool = "default"
        self.exclusions = NO_EXCLUSIONS
        self.broker.dropped = self._dropped
        self.verdicts: list[str] = []
        self._checks: dict[SimOwner, FinishedCheck] = {}
        self.lossy = False
        self.scope: Scope | None = None
        self.scoped = False
        """Workers leave out the links that the scope of the shard's revision excludes."""
        self.revised = 0
        self._commands = 0
        self._policies: dict[str, tuple[HostPolicySpec, int | None]] = {}
        self._seeded = 0
        self._terms = 0
        self._started = 0
        self._told = 0

    # --- processes ----------------------------------------------------------------------------------------------------

    def start_owner(self, *, loads_after_s: float = 0.0) -> SimOwner:
        """A new owner claims the partition under a later term. Its master loads the crawls only after a while."""
        self._terms += 1
        term = Term(self._terms)
        process = self.world.process(f"owner{term}")
        crawls, room = DispatchCrawls(), PoolCapacity()
        crawls.exclusions = self.exclusions
        store = store_of(self.world, process, self.database, term)
        clock = self.world.clock()
        owner = Owner(
            PARTITION,
            term,
            store=store,
            broker=self.broker.client(process),
            clock=clock,
            crawls=crawls,
            capacity=room,
            settings=SETTINGS,
            archive=self.archive.reader(process),
        )
        sim = SimOwner(process, term, crawls, room, owner, store, clock)
        self.owners.append(sim)
        if loads_after_s:
            self.world.spawn(process, self._load_later(sim, loads_after_s), "load")
        else:
            self._load(sim)
        self.world.spawn(process, owner.run(), "run")
        return sim

    def _load(self, sim: SimOwner) -> None:
        for row in self.database.write(stored_crawls.crawls):
            if sim.crawls.get(row.crawl_id) is None:
                sim.crawls.put(self._active(sim, row))
                if sim.owner.ownership is not None:
                    sim.owner.ownership.hosts.mark_incomplete(row.crawl_id)

    async def _load_later(self, sim: SimOwner, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self._load(sim)

    def start_worker(self, *, heedless: bool = False, batch: int = 1) -> SimWorker:
        self._started += 1
        process = self.world.process(f"worker{self._started}")
        worker = SimWorker(
            self.world,
            process,
            self.broker.client(process),
            self.web,
            self.watch,
            self.views.get,
            self._heard,
            heedless,
            batch,
            lambda: self.pool,
            archive=self.archive if self.scoped else None,
        )
        self.workers.append(worker)
        worker.start()
        return worker

    def processes(self) -> list[Process]:
        """Owners and workers that were not killed."""
        every = [sim.process for sim in self.owners] + [worker.process for worker in self.workers]
        return [process for process in every if not process.dead]

    def _heard(self, worker: SimWorker) -> None:
        status = WorkerStatus(worker.process.name, self.pool, VISITS, worker.busy)
        for sim in self.owners:
            if not sim.process.dead:
                sim.room.worker_reported(status, self.world.now)
                if sim.owner.ownership is not None:
                    sim.owner.ownership.work.notify()

    # --- the operator -------------------------------------------------------------------------------------------------

    def spec(self) -> CrawlSpec:
        site = self.site
        return CrawlSpec(
            seeds=tuple(Seed(url=self.web.url(i)) for i in site.seeds),
            scope=self.scope or Scope(max_depth=site.max_depth),
            politeness=Politeness(delay_s=site.delay_s),
            retry=Retry(attempts=3, base_s=1.0),
            pool=self.pool,
            recrawl=_recrawl(site) if site.recrawl_s else Recrawl(),
        )

    def create_crawl(self, name: str = "crawl") -> CrawlId:
        """Declare the crawl, tell everybody, publish its seeds."""
        spec = self.spec()
        row, _ = self.world.do(self.operator, self.store.put_crawl(name, encode_spec(spec).decode(), EPOCH_MS))
        self.crawl_id = row.crawl_id
        self.views[row.crawl_id] = CrawlView(self.site.max_depth, self.site.delay_s, lastmods=self.site.adaptive)
        self._viewed(row)
        for sim in self.owners:
            sim.crawls.put(self._active(sim, row))
        client = self.broker.client(self.operator)
        self.world.do(self.operator, publish_seeds(client, row.crawl_id, row.revision, spec.seeds, SETTINGS.partitions))
        self.world.do(self.operator, self.store.set_state(row.crawl_id, CrawlState.RUNNING, None, EPOCH_MS))
        return row.crawl_id

    def _viewed(self, row: CrawlRow) -> None:
        if self.scope is not None:
            self.views[row.crawl_id].scopes[row.revision] = CompiledScope(self.spec())

    def change_scope(self, scope: Scope) -> Revision:
        """Declare another revision with this scope, and tell every owner. Workers learn of it by shards, if at all."""
        self.scope = scope
        self.revised += 1
        spec = encode_spec(self.spec()).decode()
        row, _ = self.world.do(self.operator, self.store.put_crawl("crawl", spec, EPOCH_MS))
        self._viewed(row)
        self.world.do(self.operator, self.store.set_state(row.crawl_id, CrawlState.RUNNING, None, EPOCH_MS))
        for sim in self.owners:
            if sim.crawls.get(row.crawl_id) is not None:
                sim.crawls.put(self._active(sim, row))
                if sim.owner.ownership is not None:
                    sim.owner.ownership.moved.notify()
        return row.revision

    def delete_crawl(self) -> None:
        """Mark it deleted, tell everybody, send the command that removes its rows."""
        old = self.crawl_id
        self.world.do(self.operator, self.store.set_state(old, CrawlState.DELETED, None, EPOCH_MS))
        self.views.pop(old)
        for sim in self.owners:
            sim.crawls.remove(old)
        self.judge.deleted[old] = self.command(CommandKind.DELETE)

    def delete_seed(self, choice: int) -> None:
        """Take one of the seeds back, fetched or not."""
        url = self.web.url(self.site.seeds[choice % len(self.site.seeds)])
        self.judge.taken_back.setdefault(self.crawl_id, set()).add(url)
        self.command(CommandKind.DELETE_SEEDS, all=False, places=[(host_of(url), fingerprint(url))])

    def add_seed(self, choice: int) -> None:
        """Give one of the seeds once more."""
        self._seeded += 1
        seed = Seed(url=self.web.url(self.site.seeds[choice % len(self.site.seeds)]))
        client = self.broker.client(self.operator)
        self.world.do(self.operator, publish_seeds(client, self.crawl_id, Revision(1), [seed], SETTINGS.partitions))

    def move_pool(self) -> None:
        """Move all workers, and the next crawl, to another pool: no worker pulls from the old one any more."""
        self.pool = f"pool{self.crawl_id}"

    def exclude(self, target: str) -> str:
        """Exclude a target, of which workers learn nothing; the command's id."""
        self.in_force(target)
        return self.command(
            CommandKind.EXCLUDE, CrawlId(0), target=target, revision=self.exclusions.revision, withdraw=False
        )

    def in_force(self, *targets: str) -> None:
        """Let every owner follow a new list of exclusions."""
        self.exclusions = Exclusions(self.exclusions.revision + 1, targets)
        for sim in self.owners:
            sim.crawls.exclusions = self.exclusions
            if sim.owner.ownership is not None:
                sim.owner.ownership.moved.notify()

    def command(self, kind: CommandKind, crawl_id: CrawlId | None = None, **args: object) -> str:
        """Publish an operator's verb; its id."""
        self._commands += 1
        name = f"command{self._commands}"
        data = encode(Command(name, self.crawl_id if crawl_id is None else crawl_id, kind, dict(args)))
        self.broker.publish(command(PARTITION), data, name)
        return name

    def put_policy(
        self, host: str, *, delay_s: float | None = None, until_ms: int | None = None, slots: int | None = None
    ) -> None:
        """Set these parts of a host's policy, and publish its command. 0 removes a part; None leaves it as it was."""
        spec, ends_ms = self._policies.get(host, (HostPolicySpec(), None))
        if delay_s is not None:
            spec = msgspec.structs.replace(spec, delay_s=delay_s or None)
        if slots is not None:
            spec = msgspec.structs.replace(spec, slots=slots or None)
        if until_ms is not None:
            block = HostBlock(reason="test", until=str(until_ms)) if until_ms else None
            spec, ends_ms = msgspec.structs.replace(spec, block=block), until_ms or None
        self._policies[host] = (spec, ends_ms)
        limits = limits_of(spec, ends_ms)
        waiting = self.database.write(
            lambda connection: (
                host_policies.put(
                    connection, host, PARTITION, spec, limits, expected=None, actor=_OPERATOR, now_ms=EPOCH_MS
                ),
                host_policies.commands(connection, 0),
            )
        )[1]
        for each in waiting:
            self.command(CommandKind.HOST_POLICY, CrawlId(0), host=each.host)
            self.database.write(partial(host_policies.commanded, revision=each.revision))

    def ask_finished(self, choice: int = -1) -> None:
        """Begin the finished check with one of the owners; its verdict is judged when it comes."""
        living = [sim for sim in self.owners if not sim.process.dead]
        if living:
            sim = living[choice % len(living)]
            self.world.spawn(self.operator, self._check_finished(sim, self.crawl_id), "finished")

    def finished_check(self) -> FinishedCheck:
        """A check that has seen nothing yet."""
        return FinishedCheck([PARTITION], self.store, self.broker.client(self.operator))

    async def _check_finished(self, sim: SimOwner, crawl_id: CrawlId) -> None:
        crawl = sim.crawls.get(crawl_id)
        if crawl is None:
            return
        seeded, revised = self._seeded, self.revised
        # A check is one loop's: what one with this owner waits for is kept until the next.
        check = self._checks.pop(sim, None) or self.finished_check()
        reason = await finished(check, crawl, [sim.owner])
        self._checks[sim] = check
        # Seeds that came meanwhile make a crawl run again: what the check said was said of the others.
        if (
            reason is not None
            and crawl_id == self.crawl_id
            and crawl_id in self.views
            and ((seeded, revised) == (self._seeded, self.revised))
        ):
            self.verdicts.append(reason)
            # Under a narrow scope, what lies within reach depends on the pages that were fetched before it.
            narrow = self.scoped and self.scope is not None and bool(self.scope.exclude)
            self.judge.finished(crawl_id, self._expected(), lossy=self.lossy or narrow)

    def tell_unreadable(self, choice: int, times: int) -> None:
        """Report a queued shard as unreadable, whether or not that is so."""
        visits = list(self.broker.visits.values())
        place = queued_visit(visits[choice % len(visits)].subject)
        assert place is not None
        for _ in range(times):
            self._told += 1
            told = ShardUnreadable(*place, sequence=self._told, worker="liar", reason="", size=1, data=NOISE)
            self.broker.publish(report(PARTITION, "outcome"), encode(told), f"told.{self._told}")

    def _dropped(self, visit: Visit) -> None:
        try:
            lease = decode_shard(visit.data).lease
        except Malformed:
            return  # it names none
        if self.database.rows("SELECT 1 FROM leases WHERE lease_id = :lease", lease=lease):
            self.world.blame(f"the shard of lease {lease} was dropped as a stray, and the lease lives")

    def _expected(self) -> tuple[Sequence[int], int | None]:
        return self.site.seeds, self.site.max_depth

    def _active(self, sim: SimOwner, row: CrawlRow) -> DispatchCrawl:
        """Return a crawl as `ActiveCrawls` loads it: its spending is read once, and stays with a new revision."""
        known = sim.crawls.get(row.crawl_id)
        allowance = known.allowance if known else BudgetReservation(None, None, self.database.spent(row.crawl_id))
        return DispatchCrawl(row.crawl_id, row.name, row.revision, self.spec(), row.state, allowance)

    # --- the end ------------------------------------------------------------------------------------------------------

    def wipe_broker(self) -> None:
        """The broker loses what it stored; what was not applied is lost with it."""
        self.lossy = self.lossy or self.broker.last([report(PARTITION, "discovery")]) > self.judge.position()[1]
        self.broker.wipe()
        # A message of a late publish may now be new again, and a producer's number skip one.
        self.lossy = True

    def put_broker_back(self, messages: int, more: int) -> None:
        """The broker comes back with a store of so many reports before, and more come before owners look at it."""
        self.lossy = True
        self.broker.put_back(messages)
        for number in range(more):
            self.broker.publish(report(PARTITION, "discovery"), NOISE, f"more{self.broker.incarnation}.{number}")

    def heal(self) -> None:
        """End every fault, and let there be an owner and a worker."""
        self.database.full = False
        for process in self.world.processes:
            process.fault = None
            process.stopped = False
        for sim in self.owners:
            sim.clock.off_s = 0.0
        for effect in self.world.late:
            effect()
        self.world.late.clear()
        if not any(sim.process in self.processes() and sim.term == self._terms for sim in self.owners):
            self.start_owner()
        if not any(not worker.process.dead for worker in self.workers):
            self.start_worker()

    def settle(self) -> None:
        """Let everything run without faults until the crawl is finished; it must be."""
        self.heal()
        self.until_finished()
        if self.database.rows("SELECT 1 FROM urls WHERE reason = 'poison'"):
            self.command(CommandKind.RETRY_FAILED)
            self.until_finished()
        # A grant whose worker died may outlast the crawl, but not its time.
        self.world.run_for(100.0)
        self.judge.at_rest(self.crawl_id, self._expected(), lossy=self.lossy)
        if self.broker.visits:
            self.world.blame(f"shards {sorted(self.broker.visits)} are left, which have no lease")

    def until_finished(self) -> None:
        """Run until the finished check says so, for `LONGEST_S` beyond the time until which a host is left alone: one
        with many pages that were busy at first is left alone for longer and longer."""
        until = self.world.now + LONGEST_S
        self.verdicts.clear()
        self.world.run_for(1.0)
        while not self.verdicts and self.world.now < until and not self.world.violations:
            self.world.run_for(10.0)
            self.judge.look()
            self.ask_finished()
            self.world.run_for(0.1)
            until = max(until, self.left_alone_until() + LONGEST_S)
        if not self.verdicts and not self.world.violations:
            self.world.blame(f"stalled: not finished after {LONGEST_S} s without faults; {self.judge.summary()}")

    def left_alone_until(self) -> float:
        """Until when hosts that have something queued are blocked: by their own failures, or by an operator."""
        queued = "queues q USING (host_id) WHERE q.queued + q.waiting > 0"
        ((until_ms,),) = self.database.rows(f"SELECT max(h.blocked_until_ms) FROM hosts h JOIN {queued}")
        return (int(until_ms or EPOCH_MS) - EPOCH_MS) / 1000

    def assert_kept(self) -> None:
        """Every promise, so far."""
        self.judge.look()
        if self.world.violations:
            recent = "\n".join(self.world.trace[-60:])
            raise AssertionError("\n".join(self.world.violations) + f"\nlast steps:\n{recent}")

    def close(self) -> None:
        self.world.close()


def _recrawl(site: Site) -> Recrawl:
    policy, parts = (RecrawlPolicy.ADAPTIVE, 4) if site.adaptive else (RecrawlPolicy.FIXED, 1)
    min_s, max_s = site.recrawl_s / parts, site.recrawl_s
    return Recrawl(policy=policy, min_s=min_s, max_s=max_s, requests_per_day=10**7, keep_versions=1000)
