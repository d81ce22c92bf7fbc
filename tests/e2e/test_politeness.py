"""Politeness as the servers saw it: no request sooner than the delay after the last response, whatever befalls us."""

import json
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.support.processes.crawl_process import Role, Running, kill, write_spec
from tests.support.processes.orb_command import orb
from tests.support.web import log_judge
from tests.support.web.exchange_log import Exchange
from tests.support.web.synthetic_site import SyntheticSite
from tests.support.web.throttled_site import ThrottledSite
from tests.support.web.web_server import Web

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

DELAY_S = 0.2
GRANT_S = 3.0


def crawling(
    served: Web,
    folder: Path,
    *,
    delay_s: float,
    workers: int,
    seeds: Iterable[str] = (),
    grant_s: float = GRANT_S,
) -> Running:
    spec = write_spec(
        folder / "spec.json",
        {
            "seeds": list(seeds) or [f"{origin}/" for origin in served.origins],
            "scope": {"mode": "any"},
            "politeness": {"delay_s": delay_s},
            "retry": {"base_s": 0.2, "attempts": 5},
        },
    )
    settings = {"ORB_GRANT_S": str(grant_s), "ORB_ACK_WAIT_S": str(grant_s)}
    return Running(folder / "crawl", "--spec", spec, "--workers", str(workers), settings=settings)


def check_polite(served: Web, log: list[Exchange], site: SyntheticSite, delay_s: float) -> float:
    """One request at a time, robots first, nothing forbidden, the delay kept everywhere; the smallest gap of all."""
    assert log_judge.disallowed_requested(log, dict.fromkeys(served.hosts, site.robots())) == []
    assert log_judge.asked_before_robots(log) == []
    assert {host: log_judge.max_in_flight(log, host) for host in served.hosts} == dict.fromkeys(served.hosts, 1)
    gaps = {host: log_judge.smallest_gap(log, host) for host in served.hosts}
    assert {host: gap for host, gap in gaps.items() if gap < delay_s} == {}
    return min(gaps.values())


@pytest.mark.long
def test_eight_workers_keep_the_delay_on_twenty_hosts(web: Callable[..., Web], tmp_path: Path) -> None:
    site = SyntheticSite(
        pages=600, hosts=20, latency_s=(0.0, 0.02, 0.3), private=50, redirects=30, missing=20, flaky=30
    )
    served = web(site)
    with crawling(served, tmp_path, delay_s=DELAY_S, workers=8) as run:
        summary = run.finish()
    log = served.log()
    assert summary["excluded"]["robots"] > 10
    assert min(len(log_judge.of_host(log, host)) for host in served.hosts) >= 20
    assert log_judge.hosts_in_motion(log) >= 8, "hosts were visited one after the other: nothing was tested"
    print(f"smallest gap {check_polite(served, log, site, DELAY_S):.6f} s over {len(log)} exchanges")


@contextmanager
def stopped(process: psutil.Process) -> Iterator[None]:
    """SIGSTOP for longer than a grant lasts, the block included; then SIGCONT."""
    until = time.monotonic() + 1.5 * GRANT_S
    assert kill(process, signal.SIGSTOP)
    try:
        yield
        time.sleep(max(0.0, until - time.monotonic()))
    finally:
        kill(process, signal.SIGCONT)


def answered(run: Running, served: Web, more: int) -> None:
    """Wait for `more` exchanges."""
    wanted = len(served.log()) + more
    run.wait_until(lambda: len(served.log()) >= wanted, f"{more} more requests were answered")


def busiest_worker(run: Running, served: Web) -> psutil.Process:
    """The worker with the most connections to the web: one that surely holds visits."""

    def connections(process: psutil.Process) -> int:
        try:
            return sum(bool(c.raddr) and c.raddr.port == served.port for c in process.net_connections("tcp"))
        except psutil.Error:
            return -1

    return max(run.wait_for("worker"), key=connections)


def events(run: Running, role: Role, event: str) -> list[dict[str, object]]:
    """What the processes with a role logged as `event`."""
    lines = [line for path in (run.out / "logs").glob(f"{role}*.log*") for line in path.read_text().splitlines()]
    return [json.loads(line) for line in lines if f'"{event}"' in line]


@pytest.mark.long
@pytest.mark.faults
def test_the_delay_is_kept_across_deaths_and_stops_that_outlast_a_grant(
    web: Callable[..., Web], tmp_path: Path
) -> None:
    site = SyntheticSite(pages=1400, hosts=20, latency_s=(0.0, 0.05, 0.4), private=20, redirects=20)
    served = web(site)
    with crawling(served, tmp_path, delay_s=DELAY_S, workers=8) as run:
        run.wait_until(lambda: len(served.log()) >= 80, "80 requests were answered")
        kill(busiest_worker(run, served))
        answered(run, served, 60)
        with stopped(busiest_worker(run, served)), stopped(busiest_worker(run, served)):
            pass
        answered(run, served, 60)
        with stopped(run.wait_for("master")[0]):
            pass
        answered(run, served, 60)
        worker = busiest_worker(run, served)
        with stopped(worker):
            kill(run.wait_for("master")[0])
        answered(run, served, 60)
        kill(run.wait_for("broker")[0])
        answered(run, served, 60)
        with stopped(run.wait_for("broker")[0]):
            pass
        answered(run, served, 60)
        run.kill_command()
        run.start()
        answered(run, served, 60)
        summary = run.finish()
    log = served.log()
    expired, lost = events(run, "master", "grant.expired"), events(run, "worker", "visit.lost")
    assert expired, "no grant ran out: nothing was put to the test"
    assert lost, "no worker noticed that its grant was over: nothing was put to the test"
    gap = check_polite(served, log, site, DELAY_S)
    print(f"smallest gap {gap:.6f} s over {len(log)} exchanges; {len(expired)} grants expired, {len(lost)} visits lost")
    assert summary["identities"] == {"urls": 0, "links": 0}
    assert summary["pages"] == len(site.expected_pages(served.origins))


@pytest.mark.parametrize("delay_s", [0.0, 0.05])
@pytest.mark.smoke
def test_a_crawl_delay_of_robots_txt_is_honoured_from_the_first_page_on(
    delay_s: float, web: Callable[..., Web], tmp_path: Path
) -> None:
    """Where there is no delay several workers may visit a host at once: not before one has read its robots.txt."""
    site = SyntheticSite(pages=90, hosts=6, crawl_delay_s=0.5)
    served = web(site)
    pages = site.expected_pages(served.origins)
    # A grant that ran out would have pages asked for again.
    with crawling(served, tmp_path, delay_s=delay_s, workers=2, seeds=pages, grant_s=30.0) as run:
        run.finish()
    log = served.log()
    check_polite(served, log, site, 0.5)
    asked = log_judge.requested(log)
    assert asked == {**dict.fromkeys(pages, 1), **{f"{origin}/robots.txt": 1 for origin in served.origins}}


def after_the_429(log: list[Exchange], host: str) -> list[Exchange]:
    """What was asked of a host after its 429 began."""
    exchanges = log_judge.of_host(log, host)
    at = next(index for index, exchange in enumerate(exchanges) if exchange.status == 429)
    return exchanges[at + 1 :]


def test_retry_after_is_honoured_and_explained_in_resumed_crawl(web: Callable[..., Web], tmp_path: Path) -> None:
    served = web(ThrottledSite(pages=40, after=10, retry_after="3600"), SyntheticSite(pages=60))
    throttled, other = served.hosts
    with crawling(served, tmp_path, delay_s=0.1, workers=2) as run:
        run.wait_until(lambda: any(exchange.status == 429 for exchange in served.log()), "the host said 429")
        seen = len(log_judge.of_host(served.log(), other))
        run.wait_until(lambda: len(log_judge.of_host(served.log(), other)) >= seen + 20, "the other host went on")
        run.command.send_signal(signal.SIGINT)
        run.finish(code=3)
        run.start()
        run.wait_until(lambda: len(log_judge.of_host(served.log(), other)) >= 61, "the other host was through")
        run.command.send_signal(signal.SIGINT)
        run.finish(code=3)
    assert after_the_429(served.log(), throttled) == []
    refused = next(exchange for exchange in served.log() if exchange.status == 429)
    shown = json.loads(orb("show", run.out, "--url", f"http://{throttled}{refused.path}", "--json"))
    assert (shown["state"], shown["attempts"]) == ("waiting", 1)
    assert shown["host"]["blocked_until"] > shown["fetch"]["at"]


@pytest.mark.slow
def test_host_is_requested_after_retry_after_and_pages_fetched(web: Callable[..., Web], tmp_path: Path) -> None:
    served = web(ThrottledSite(pages=20, after=10, retry_after="75"))
    with crawling(served, tmp_path, delay_s=0.1, workers=1) as run:
        summary = run.finish(timeout_s=240)
    log = served.log()
    refused = next(exchange for exchange in log if exchange.status == 429)
    later = after_the_429(log, served.hosts[0])
    assert later[0].begun_ns - refused.ended_ns >= 75 * 10**9
    assert summary["pages"] == 21


def test_a_crawl_that_starts_over_keeps_the_delay_after_the_last_request(
    web: Callable[..., Web], tmp_path: Path
) -> None:
    """The deleted database knew when each host was fetched, and the new one does not."""
    served = web(SyntheticSite(pages=1, hosts=1))
    folder, delay_s = tmp_path / "crawl", 2.5
    command = ("crawl", f"{served.origins[0]}/", "--delay", str(delay_s), "--allow-net", "127.0.0.0/8", "--out", folder)
    orb(*command)
    orb(*command, "--fresh")
    log = served.log()
    assert len(log) >= 4
    assert log_judge.smallest_gap(log, served.hosts[0]) >= delay_s
