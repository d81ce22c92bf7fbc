"""A worker dies between each pair of steps of a report, on the real engines; others finish what it began."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from shared.adapters.nats.server import master_login
from shared.adapters.sql.catalog.crawl_reader import CrawlReader
from shared.runtime.supervise import FAILPOINT, dying_with
from tests.support.archive.stored_crawl import check_crawl
from tests.support.processes.crawl_process import Running, write_spec
from tests.support.processes.orb_command import ROOT
from tests.support.web import log_judge
from tests.support.web.synthetic_site import SyntheticSite
from tests.support.web.web_server import Web

pytestmark = [pytest.mark.e2e, pytest.mark.faults, pytest.mark.timeout(300), pytest.mark.long]

DELAY_S: Final = 0.2
GRANT_S: Final = "3"
STEPS: Final = ("after_fetch", "archived", "synced", "discoveries_acked", "items_acked", "outcome_acked", "before_ack")
"""The failpoints in the order of a report: fetched, record written, record durable, links acknowledged, items
acknowledged, outcome acknowledged, and the shard reported but its message not settled."""


def doomed_worker(run: Running, step: str, count: int) -> subprocess.Popen[bytes]:
    """A further worker of the crawl, which kills itself the `count`-th time it has come to `step`."""
    nats = run.out / "nats"
    ports = json.loads(next((nats / "ports").glob("*.ports")).read_text())
    settings = {
        "ORB_ID": f"doomed-{step}",
        "ORB_DIR": str(run.out),
        "ORB_NATS_URL": ports["nats"][0],
        **master_login(nats / "nats.conf").environment,
        "ORB_ACK_WAIT_S": GRANT_S,
        FAILPOINT: f"{step}:{count}",
    }
    with (run.out / "logs" / f"worker-doomed-{step}.log").open("wb") as log:
        return subprocess.Popen(
            [*dying_with(os.getpid()), sys.executable, "-m", "orb", "_worker"],
            cwd=ROOT, env={**os.environ, **settings}, stdout=log, stderr=log,
        )  # fmt: skip


def test_a_worker_that_dies_between_any_two_steps_of_a_report_costs_nothing(
    web: Callable[..., Web], tmp_path: Path
) -> None:
    site = SyntheticSite(pages=3000, hosts=20, missing=20, flaky=20, redirects=30, loops=10, private=20)
    served = web(site)
    expected = set(site.expected_pages(served.origins))
    spec = write_spec(
        tmp_path / "spec.json",
        {
            "seeds": [f"{served.origins[0]}/"],
            "scope": {"mode": "any"},
            "politeness": {"delay_s": DELAY_S},
            "retry": {"base_s": 0.2, "attempts": 5},
            "fetch": {"first_byte_timeout_s": 100},
            "extract": {"items": [{"name": "page", "fields": {"title": {"css": "title", "required": True}}}]},
        },
    )
    settings = {"ORB_GRANT_S": GRANT_S, "ORB_ACK_WAIT_S": GRANT_S}
    with Running(tmp_path / "crawl", "--spec", spec, "--workers", "1", settings=settings) as run:
        run.wait_until(lambda: len(served.log()) >= 100, "100 requests were answered")
        for step in STEPS:
            served.answer(20)  # the pages must last for all of them, however long one takes to start
            doomed = doomed_worker(run, step, count=2)
            said = run.out / "logs" / f"worker-doomed-{step}.log"
            try:
                run.wait_until(lambda said=said: b"worker.started" in said.read_bytes(), f"one starts for {step}")  # type: ignore[misc]  # bound now
                served.answer(None)
                run.wait_until(lambda doomed=doomed: doomed.poll() is not None, f"a worker died at {step}")  # type: ignore[misc]  # bound now
            finally:
                doomed.kill()
            assert doomed.wait() == -signal.SIGKILL, f"the worker ended before it came to {step}"
        summary = run.finish()
    check_crawl(run.out, summary, expected)
    reader = CrawlReader(run.out / "crawl.db")
    try:
        row = reader.crawl()
        assert row is not None
        items = list(reader.items(row.crawl_id))
    finally:
        reader.close()
    assert sorted(item.url for item in items) == sorted(expected), "every page's item is there, and once"
    log = served.log()
    print(
        f"{len(STEPS)} deaths, {len(log)} exchanges, {len(log_judge.fetched_more_than_once(log))} pages fetched again"
    )
    assert log_judge.fetched_more_than_once(log), "no page was fetched again: no worker died with work in hand"
    assert {host: gap for host in served.hosts if (gap := log_judge.smallest_gap(log, host)) < DELAY_S} == {}
