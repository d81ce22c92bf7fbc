"""The web as it is, ordinary and hostile: one crawl of many small sites, judged by their server and by the exports.

A second crawl runs mutants: on each host the rule is removed that its behaviour tests, and the judge must object.
"""

import json
import os
import subprocess
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from cli.local.crawl_folder import CrawlFolder
from shared.adapters.sql.catalog.crawl_reader import CrawlReader
from shared.domain.web.url import locate
from tests.support.archive.stored_crawl import metadata, payload_digest, record_at
from tests.support.behaviours.answers import ANSWERS, MAX_BODY
from tests.support.behaviours.behaviour import Behaviour
from tests.support.behaviours.host_standards import HOSTS_AND_TIMES
from tests.support.behaviours.http_standards import HTTP_AND_ROBOTS
from tests.support.behaviours.judgement import Crawled, objections
from tests.support.behaviours.markup import MARKUP
from tests.support.behaviours.mutant_command import ENTRY, HOSTS, NAMES
from tests.support.behaviours.mutants import MUTANTS
from tests.support.behaviours.page_standards import URLS_AND_PAGES
from tests.support.behaviours.site import BehaviourSite
from tests.support.processes.orb_command import ROOT, command_line, export, orb
from tests.support.web import log_judge
from tests.support.web.web_server import Web

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

DELAY_S: Final = 0.2
TOTAL_S: Final = 10.0
STANDARDS: Final = (*HTTP_AND_ROBOTS, *URLS_AND_PAGES, *HOSTS_AND_TIMES)
BEHAVIOURS: Final = (*STANDARDS, *ANSWERS, *MARKUP)
Served = Callable[..., Web]


def crawled(
    served: Web, behaviours: Sequence[Behaviour], folder: Path, *, mutants: bool = False
) -> tuple[dict[str, Any], Crawled]:
    """Crawl the hosts of `behaviours`; the summary as JSON, and what is known afterwards."""
    spec = folder / "spec.json"
    placed = list(zip(served.hosts, behaviours, strict=False))
    seeds = [behaviour.origin(host) + behaviour.seed for host, behaviour in placed]
    spec.write_text(
        json.dumps(
            {
                "name": "web",
                "seeds": seeds,
                "egress": {"allow": ["127.0.0.0/8"]},
                "politeness": {"delay_s": DELAY_S},
                "retry": {"base_s": 1, "host_base_s": 2, "host_attempts": 1, "outage_s": 30},
                "fetch": {"max_body_bytes": MAX_BODY, "total_timeout_s": TOTAL_S},
            }
        )
    )
    out = folder / "web.crawl"
    hosts = {behaviour.origin(host).removeprefix("http://"): behaviour.name for host, behaviour in placed}
    names = {
        f"{name}:{served.port}": host.partition(":")[0]
        for host, behaviour in placed
        if behaviour.host
        for name in (behaviour.host, f"{behaviour.host}.")
    }
    arguments = ("crawl", "--spec", spec, "--out", out, "--json", "--no-progress", "--workers", "2")
    ended = subprocess.run(
        command_line(*arguments, entry=ENTRY),
        cwd=ROOT,
        capture_output=True,
        timeout=200,
        check=False,
        stdin=subprocess.DEVNULL,
        env={**os.environ, HOSTS: json.dumps(hosts if mutants else {}), NAMES: json.dumps(names)},
    )
    assert ended.returncode == 0, ended.stderr.decode()
    urls = {row["url"]: row for row in export("urls", out)}
    pages = {row["url"]: row for row in export("pages", out)}
    return json.loads(ended.stdout), Crawled(served.log(), urls, pages, left_out(out, urls), DELAY_S)


def left_out(out: Path, urls: Iterable[str]) -> dict[str, Mapping[str, int]]:
    """The links that were left out on each of the URLs, by reason, as `show --url` has them."""
    reader = CrawlReader(CrawlFolder(out).database)
    try:
        row = reader.crawl()
        assert row is not None
        views = {url: reader.url(row.crawl_id, location) for url in urls if (location := locate(url)) is not None}
    finally:
        reader.close()
    return {url: view.fetch.left_out for url, view in views.items() if view is not None and view.fetch is not None}


def judged(served: Web, behaviours: Sequence[Behaviour], seen: Crawled) -> dict[str, list[str]]:
    """What is wrong, by behaviour; empty where nothing is."""
    bystander = served.origins[-1]
    found = {
        behaviour.name: objections(behaviour, origin, bystander, seen)
        for behaviour, origin in zip(behaviours, served.origins, strict=False)
    }
    return {name: wrong for name, wrong in found.items() if wrong}


def reasons(urls: Mapping[str, Mapping[str, Any]], state: str) -> Counter[str]:
    return Counter(row["reason"] for row in urls.values() if row["state"] == state)


def test_every_behaviour_is_met_and_every_loss_is_told(web: Served, tmp_path: Path) -> None:
    assert len({behaviour.name for behaviour in BEHAVIOURS}) == len(BEHAVIOURS) >= 100
    served = web(BehaviourSite.of(BEHAVIOURS))
    summary, seen = crawled(served, BEHAVIOURS, tmp_path)
    assert judged(served, BEHAVIOURS, seen) == {}
    assert log_judge.of_host(seen.log, served.hosts[-1]) == []
    assert log_judge.asked_before_robots(seen.log) == []
    assert max(log_judge.max_in_flight(seen.log, host) for host in served.hosts[:-1]) == 1
    # What the user reads is what the server saw, and every loss has its reason.
    assert (summary["end"], summary["exit_code"], summary["state"]) == ("finished", 0, "finished")
    assert summary["identities"] == {"urls": 0, "links": 0}
    not_indexed = Counter(why for one in BEHAVIOURS for why in one.not_indexed.values())
    assert summary["not_indexed"] == not_indexed
    assert summary["pages"] == len(seen.pages) + not_indexed.total()
    assert summary["left_out"] == sum((Counter(behaviour.left_out) for behaviour in BEHAVIOURS), Counter[str]())
    for url, fields in metadata(tmp_path / "web.crawl"):
        row = seen.urls.get(url)
        assert ("seed" in fields) == (row is not None and row["discovered_from"] is None), (url, fields)
        assert ("depth" in fields, "via" in fields) == (row is not None, row is None), (url, fields)
    for state in ("failed", "excluded"):
        assert summary[state] == reasons(seen.urls, state)
        assert summary["counters"][state] == reasons(seen.urls, state).total()
    assert summary["truncated"] == Counter(why for one in BEHAVIOURS for why in one.truncated.values())
    text = orb("show", tmp_path / "web.crawl").decode()
    for told in (
        "state      finished",
        "host unreachable",
        "large headers",
        "HTTP 451",
        "robots",
        "by the network at each of",
        "at fetch.max_body_bytes",
        "damaged or unknown",
        "not listed",
    ):
        assert told in text
    for url, row in seen.pages.items():
        record = record_at(tmp_path / "web.crawl", row["segment"], row["offset"], row["length"])
        assert (record.url, record.status, payload_digest(record.payload)) == (url, row["status"], row["digest"])


def test_every_removed_rule_is_noticed_by_the_judge(web: Served, tmp_path: Path) -> None:
    """Nothing but the rule is gone: a mutant works for the host of its own behaviour alone."""
    behaviours = [behaviour for behaviour in STANDARDS if behaviour.name in MUTANTS]
    assert len(behaviours) == len(MUTANTS) >= 40
    served = web(BehaviourSite.of(behaviours))
    _, seen = crawled(served, behaviours, tmp_path, mutants=True)
    assert MUTANTS.keys() - judged(served, behaviours, seen).keys() == set()
