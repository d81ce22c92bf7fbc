"""A soak: a cluster that works for a long time under load, scrapes and kills, and a verdict on what grew and failed.
`./orb faults --soak MINUTES` is `python -m tests.support.faults.soak --soak MINUTES`.

Two masters and two workers over PostgreSQL work on three crawls: two narrow ones, and a broad one of many hosts with a
long delay. Clients read and seed, a scraper reads every member's metrics, and members and the broker are killed in
turn. A table by minute is printed and stored.
"""

import argparse
import asyncio
import csv
import itertools
import logging
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import asyncpg
import httpx
import msgspec
import structlog

from tests.support.api.cluster_clients import AnyMaster, Background, address
from tests.support.engines.ports import free_ports
from tests.support.engines.postgres import PostgresServer, postgres, server_programs
from tests.support.faults.census import Sample, bytes_below, held
from tests.support.faults.soak_verdict import STALLS, KillEvent, LogLine, SoakHistory, by_minute, verdict
from tests.support.processes.cluster import Cluster, cluster
from tests.support.web.log_judge import TooLittleTraffic
from tests.support.web.synthetic_site import SyntheticSite
from tests.support.web.web_server import Web, serve

MASTERS: Final = ("m1", "m2")
WORKERS: Final = ("w1", "w2")
VICTIMS: Final = ("worker", "leader", "broker", "follower")
"""Killed in this order, again and again."""
SETTINGS: Final = {"ORB_MEMBER_TTL_S": "6", "ORB_GRANT_S": "15", "ORB_ACK_WAIT_S": "15"}
NARROW_S: Final = 0.1
BROAD_S: Final = 5.0
PAGES: Final = 10_000_000
"""Of each site: none is ever complete."""
SITES: Final = (
    SyntheticSite(pages=PAGES, hosts=6, missing=10, flaky=10, redirects=10, latency_s=(0.0, 0.03)),
    SyntheticSite(pages=PAGES, hosts=6, seed=2, redirects=10, body_bytes=20_000),
    SyntheticSite(pages=PAGES, hosts=300, seed=3),
)
DELAYS: Final = (NARROW_S, NARROW_S, BROAD_S)
SAMPLE_S: Final = 5.0
SCRAPE_S: Final = 5.0
AWAY_S: Final = 3.0
"""How long a killed process is away."""
COUNTERS: Final = ("discovered", "queued", "leased", "done", "failed", "excluded", "accepted", "new", "known",
                   "refused")  # fmt: skip
_NOT_NOW: Final = (OSError, asyncpg.PostgresError, asyncpg.InterfaceError)


@dataclass
class Soak:
    """A cluster under way, and what was seen of it."""

    cluster: Cluster
    web: Web
    server: PostgresServer
    scraped: dict[str, str]
    samples: list[Sample] = field(default_factory=list)
    kills: list[KillEvent] = field(default_factory=list)
    begun: float = field(default_factory=time.monotonic)

    def start(self, name: str) -> None:
        """Start a member, anew if it was there before."""
        if name in WORKERS:
            self.cluster.worker(name, **SETTINGS, ORB_METRICS=self.scraped[name])
        else:
            self.cluster.master(name, **SETTINGS)

    def kill(self, what: str, number: int) -> None:
        """SIGKILL, and a new start a moment later."""
        victim = what
        match what:
            case "broker":
                self._killed("broker")
                self.cluster.broker.kill()
                time.sleep(AWAY_S)
                asyncio.run(self.cluster.broker.restart())
                return
            case "worker":
                victim = WORKERS[number % len(WORKERS)]
            case _:
                leader = self.cluster.leader() or MASTERS[0]
                victim = leader if what == "leader" else next(name for name in MASTERS if name != leader)
        self._killed(victim)
        self.cluster.members[victim].end()
        time.sleep(AWAY_S)
        self.start(victim)

    def sample(self) -> None:
        """Take one look at everything."""
        members = {name: member.process.pid for name, member in self.cluster.members.items()}
        engines = {
            "nats": self.cluster.broker.embedded.pid,
            "etcd": self.cluster.etcd.embedded.pid,
            "postgres": self.server.pid,
        }
        pids = members | {name: pid for name, pid in engines.items() if pid is not None}
        rss, descriptors = held(pids)
        folder = self.cluster.folder
        self.samples.append(
            Sample(
                at_s=time.monotonic() - self.begun,
                rss=rss,
                descriptors=descriptors,
                logs={name: member.log.stat().st_size for name, member in self.cluster.members.items()},
                storage={
                    "database": int(self.cluster.query("SELECT pg_database_size(current_database())")[0][0]),
                    "nats": bytes_below([self.cluster.broker.embedded.folder / "store"]),
                    "archive": bytes_below(folder / name for name in WORKERS),
                },
            )
        )

    def scrape(self) -> None:
        """Read every member's metrics. A member that is away is passed over."""
        for name in (*MASTERS, *WORKERS):
            where = self.scraped.get(name) or address(self.cluster, name).removeprefix("http://")
            try:
                httpx.get(f"http://{where}/metrics", timeout=SCRAPE_S)
            except httpx.HTTPError:
                continue

    def _killed(self, victim: str) -> None:
        self.kills.append(KillEvent(victim, time.time()))
        print(f"{time.monotonic() - self.begun:7.1f} s  kill {victim}", file=sys.stderr, flush=True)


class Clients:
    """Declare the crawls, then read and seed for as long as the soak lasts."""

    def __init__(self, soak: Soak) -> None:
        self._soak = soak
        self._all = [AnyMaster(soak.cluster, list(MASTERS)) for _ in range(2)]
        self._numbers = itertools.count(1)
        self._kills = [0 for _ in self._all]
        self.names = tuple(f"soak{number}" for number in range(len(SITES)))

    def declare(self) -> None:
        """Declare every crawl under an Idempotency-Key until a master has stored it."""
        for number, name in enumerate(self.names):
            origins = self._soak.web.origins_of(number)
            spec = {
                "seeds": list(origins),
                "scope": {"mode": "any"},
                "politeness": {"delay_s": DELAYS[number]},
                "egress": {"allow": ["127.0.0.0/8"]},
            }
            body = {"name": name, "spec": spec}
            self._soak.cluster.wait_until(
                lambda body=body, name=name: self._stored(body, name),  # type: ignore[misc]  # bound now
                f"{name} is declared",
            )

    def write(self) -> None:
        """Seed the first crawl with pages that nothing links to."""
        number = next(self._numbers)
        site, origins = SITES[0], self._soak.web.origins_of(0)
        seeds = [f"{origins[page % site.hosts]}{site.path(page)}?upload={number}" for page in range(number, number + 5)]
        self._ask(0, "POST", f"/v1/crawls/{self.names[0]}/seeds", {"seeds": seeds})

    def read(self) -> None:
        """Read what an operator watches."""
        for path in ("/v1/crawls", "/v1/lag", "/v1/workers", "/v1/masters", f"/v1/crawls/{self.names[2]}"):
            self._ask(1, "GET", path)

    def close(self) -> None:
        for one in self._all:
            one.close()

    def _stored(self, body: object, name: str) -> bool:
        answer = self._all[0].ask("POST", "/v1/crawls", body, **{"Idempotency-Key": name})
        assert answer is None or answer.status == 201, answer
        return answer is not None

    def _ask(self, client: int, method: str, path: str, body: object = None) -> None:
        one = self._all[client]
        # Each client has a thread of its own, so each looks for itself where the masters are.
        if len(self._soak.kills) != self._kills[client]:
            self._kills[client] = len(self._soak.kills)
            one.refresh()
        answer = one.ask(method, path, body)
        if answer is None:
            one.refresh()  # a master that was started again listens elsewhere
        else:
            assert answer.status < 500, answer


def soaked(folder: Path, server: PostgresServer, seconds: float, kill_every_s: float) -> SoakHistory:
    """Run a soak in `folder` and return what it leaves behind."""
    with ExitStack() as stack:
        web = stack.enter_context(serve(folder / "web.jsonl", *SITES))
        url = asyncio.run(server.database())
        stack.callback(lambda: asyncio.run(server.drop(url)))
        running = stack.enter_context(cluster(folder, url))
        ports = iter(free_ports(len(WORKERS)))
        soak = Soak(running, web, server, {name: f"127.0.0.1:{next(ports)}" for name in WORKERS})
        for name in (*MASTERS, *WORKERS):
            soak.start(name)
        running.wait_until(lambda: "" not in running.owners(), "all is owned")
        clients = Clients(soak)
        stack.callback(clients.close)
        clients.declare()
        web.wait_served(50)
        with _load(soak, clients):
            _kill_in_turn(soak, seconds, kill_every_s)
        return _left(soak, clients, seconds)


@contextmanager
def _load(soak: Soak, clients: Clients) -> Iterator[None]:
    soak.begun = time.monotonic()
    acts: list[tuple[Callable[[], object], float]] = [
        (soak.sample, SAMPLE_S), (soak.scrape, SCRAPE_S), (clients.write, 1.0), (clients.read, 0.5),
    ]  # fmt: skip
    with ExitStack() as stack:
        for act, pause_s in acts:
            stack.enter_context(Background(act, pause_s))
        yield


def _kill_in_turn(soak: Soak, seconds: float, every_s: float) -> None:
    for number, what in enumerate(itertools.cycle(VICTIMS), start=1):
        left_s = soak.begun + seconds - time.monotonic()
        time.sleep(max(0.0, min(left_s, soak.begun + number * every_s - time.monotonic())))
        if soak.begun + seconds - time.monotonic() < every_s / 2:
            time.sleep(max(0.0, soak.begun + seconds - time.monotonic()))
            return
        soak.kill(what, number)


def _left(soak: Soak, clients: Clients, seconds: float) -> SoakHistory:
    sums = ", ".join(f"sum({name})" for name in COUNTERS)
    rows = soak.cluster.query(
        f"SELECT name, {sums}, sum(pages) FROM crawl_counters JOIN crawls USING (crawl_id) GROUP BY name"
    )
    named = {name: tuple(map(int, counted)) for name, *counted in rows}
    empty = (0,) * (len(COUNTERS) + 1)
    hosts = (zip(soak.web.origins_of(site), itertools.repeat(delay_s)) for site, delay_s in enumerate(DELAYS))
    return SoakHistory(
        seconds=seconds,
        members=(*MASTERS, *WORKERS),
        samples=tuple(soak.samples),
        kills=tuple(soak.kills),
        lines=tuple(_lines(soak.cluster)),
        counters={name: dict(zip(COUNTERS, named.get(name, empty), strict=False)) for name in clients.names},
        delays={origin.removeprefix("http://"): delay_s for pairs in hosts for origin, delay_s in pairs},
        exchanges=tuple(soak.web.log()),
        pages={name: named.get(name, empty)[-1] for name in clients.names},
    )


def _lines(running: Cluster) -> Iterator[LogLine]:
    """The lines of the members' logs that may be of interest; the rest of a long log is not kept."""
    for member in running.members.values():
        with member.log.open("rb") as file:
            for line in file:
                if b'"level":"error"' in line or b'"level":"critical"' in line or b'"owner.' in line:
                    said = msgspec.json.decode(line)
                    at = datetime.fromisoformat(said["timestamp"]).timestamp()
                    yield LogLine(member.name, at, said["event"], said["level"], line.decode(errors="replace").strip())


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the table by minute for people: bytes as MB."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    shown = [[_shown(name, row.get(name)) for name in names] for row in rows]
    widths = [max(len(name), *(len(row[at]) for row in shown)) for at, name in enumerate(names)]
    lines = [names, *shown]
    return "\n".join(" ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)


def _shown(name: str, value: int | None) -> str:
    if value is None:
        return "-"
    return str(value) if name == "minute" or name.startswith("fds ") else f"{value / 1e6:.1f}"


def stored(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Write the table by minute as CSV, in bytes."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """0: nothing grew, failed or was rude; 1: something did, or too little went on to say so."""
    parser = argparse.ArgumentParser(prog="orb faults", description="Soak a cluster.")
    parser.add_argument("--soak", type=float, required=True, metavar="MINUTES", help="how long")
    parser.add_argument("--kill-every", type=float, default=120.0, metavar="S", help="default: %(default)s")
    parser.add_argument("--table", type=Path, default=Path("soak.csv"), help="by minute (default: %(default)s)")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave logs there")
    given = parser.parse_args(arguments)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    programs = server_programs()
    if programs is None:
        raise SystemExit("PostgreSQL's programs are not installed")
    folder = Path(tempfile.mkdtemp(prefix="orb-s-"))
    try:
        with postgres(programs) as server:
            left = soaked(folder, server, given.soak * 60, given.kill_every)
    finally:
        if given.keep is not None:
            shutil.copytree(folder, given.keep, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.sock*", "w*"))
        shutil.rmtree(folder, ignore_errors=True)
    rows = by_minute(left.samples)
    stored(rows, given.table)
    print(table(rows))
    stalls = sum(line.event in STALLS for line in left.lines)
    print(f"{stalls} stalls of members' loops, which the machine may explain")
    print(f"{len(left.exchanges)} requests, {len(left.kills)} kills, pages {dict(left.pages)}")
    try:
        wrong = verdict(left)
    except TooLittleTraffic as little:
        print(f"too little traffic: {little}", file=sys.stderr)
        return 1
    for each in wrong:
        print(each, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
