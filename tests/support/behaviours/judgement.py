"""Judge a behaviour by what its server saw and by what the user reads: the exports of URLs and pages."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from shared.domain.web.url import host_of
from tests.support.archive.stored_crawl import payload_digest
from tests.support.behaviours.behaviour import Behaviour
from tests.support.behaviours.site import answer_to, filled
from tests.support.web import log_judge
from tests.support.web.exchange_log import Exchange

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Crawled:
    """What is known after a crawl: the server's log, the rows of the exports and the links left out, by URL."""

    log: Sequence[Exchange]
    urls: Mapping[str, Row]
    pages: Mapping[str, Row]
    left_out: Mapping[str, Mapping[str, int]]
    delay_s: float


def objections(behaviour: Behaviour, served_at: str, bystander: str, crawled: Crawled) -> list[str]:
    """Return what is wrong with the crawl of `behaviour`, which was served at `served_at`; empty if nothing is."""
    host = served_at.removeprefix("http://")
    origin = behaviour.origin(host)
    own = log_judge.of_host(crawled.log, host)
    found = [*_asked(behaviour, own), *_apart(behaviour, own, crawled.delay_s)]
    strayed = [one.path for one in log_judge.of_host(crawled.log, bystander.removeprefix("http://"))]
    found += [f"the bystander was asked for {path}" for path in strayed if path == f"/{behaviour.name}"]
    for target in dict.fromkeys((*behaviour.asked, *behaviour.ends)):
        url = filled(target.encode(), served_at, bystander).decode() if "://" in target else origin + target
        end = behaviour.ends.get(target, "done")
        if end:
            found += _ended(behaviour, target, end, crawled.urls.get(url))
        if end == "done":
            found += _stored(behaviour, target, served_at, bystander, crawled.pages.get(url))
    return found + _left_out(behaviour, origin, crawled.left_out)


def _left_out(behaviour: Behaviour, origin: str, left_out: Mapping[str, Mapping[str, int]]) -> list[str]:
    host = host_of(origin + "/")
    counts = sum((Counter(reasons) for url, reasons in left_out.items() if host_of(url) == host), Counter[str]())
    return [] if counts == behaviour.left_out else [f"links left out: {dict(counts)}, not {behaviour.left_out}"]


def _asked(behaviour: Behaviour, own: Sequence[Exchange]) -> list[str]:
    asked = Counter(one.path for one in own if one.path != "/robots.txt")
    wanted = Counter(behaviour.asked)
    found = [f"{path} was asked for {asked[path]} times, not {wanted[path]}" for path in wanted - asked]
    return found + [f"{path} was asked for {asked[path]} times, not {wanted[path]}" for path in asked - wanted]


def _apart(behaviour: Behaviour, own: Sequence[Exchange], delay_s: float) -> list[str]:
    found = []
    least_s = max(delay_s, behaviour.gap_s)
    if len(own) > 1 and (gap := log_judge.smallest_gap(own, own[0].host)) < least_s:
        found.append(f"a request came {gap:.3f} s after the answer before")
    for path in behaviour.asked:
        for before, after in pairwise(one for one in own if one.path == path):
            gap = (after.begun_ns - before.ended_ns) / 1e9
            if gap < behaviour.apart_s:
                found.append(f"{path} was asked for again after {gap:.1f} s")
    return found


def _ended(behaviour: Behaviour, target: str, end: str, row: Row | None) -> list[str]:
    if row is None:
        return [f"{target} is not in the export of URLs"]
    state, _, reason = end.partition(" ")
    found = []
    if row["state"] != state or (reason and row["reason"] != reason):
        found.append(f"{target} is {row['state']} {row['reason'] or ''}, not {end}")
    status = answer_to(behaviour, target, 1_000).status
    if state == "done" and row["status"] != status:
        found.append(f"{target} has status {row['status']}, not {status}")
    return found


def _stored(behaviour: Behaviour, target: str, origin: str, bystander: str, row: Row | None) -> list[str]:
    answer = answer_to(behaviour, target, 1_000)
    if not 200 <= answer.status < 300:
        return []
    if target in behaviour.not_indexed:
        return [] if row is None else [f"{target} is in the export of pages"]
    if row is None:
        return [f"{target} is not in the export of pages"]
    found = []
    payload = answer.body if answer.payload is None else answer.payload
    if not answer.partly and row["digest"] != payload_digest(filled(payload, origin, bystander)):
        found.append(f"{target} was stored with other bytes")
    if (title := behaviour.titles.get(target)) is not None and row["title"] != title:
        found.append(f"{target} has the title {row['title']!r}, not {title!r}")
    if "truncated" in row and (row["truncated"] or "") != behaviour.truncated.get(target, ""):
        found.append(f"{target} is truncated: {row['truncated']!r}")
    return found
