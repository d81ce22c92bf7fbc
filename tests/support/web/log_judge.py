"""Judges of what a server saw: pure functions over its log, run afterwards and themselves tested on bad logs.

A judgement needs evidence: where a log holds too little traffic to say anything, they raise `TooLittleTraffic`.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Final
from urllib.robotparser import RobotFileParser

from tests.support.web.exchange_log import Exchange

_NS: Final = 1e-9


class TooLittleTraffic(AssertionError):
    """The log cannot support the judgement that was asked for."""


def hosts(log: Iterable[Exchange]) -> list[str]:
    """The hosts that were asked for anything, in the order of their first request."""
    return list(dict.fromkeys(exchange.host for exchange in sorted(log, key=lambda exchange: exchange.begun_ns)))


def of_host(log: Iterable[Exchange], host: str) -> list[Exchange]:
    """The exchanges of `host` in the order in which they began."""
    return sorted((exchange for exchange in log if exchange.host == host), key=lambda exchange: exchange.begun_ns)


def smallest_gap(log: Iterable[Exchange], host: str) -> float:
    """Seconds from the end of a response to the start of the next request to `host`, the least in the log.

    The end is the latest end of any earlier exchange, so that an overlap shows as a negative gap. Robots and refused
    requests count like any other.
    """
    exchanges = of_host(log, host)
    if len(exchanges) < 2:
        raise TooLittleTraffic(f"{host} was asked {len(exchanges)} times: no gap to measure")
    ended = exchanges[0].ended_ns
    least = None
    for before, after in pairwise(exchanges):
        ended = max(ended, before.ended_ns)
        gap = after.begun_ns - ended
        least = gap if least is None else min(least, gap)
    assert least is not None
    return least * _NS


def max_in_flight(log: Iterable[Exchange], host: str) -> int:
    """The largest number of exchanges of `host` that were open at the same instant."""
    steps = []
    for exchange in of_host(log, host):
        steps += [(exchange.begun_ns, 1), (exchange.ended_ns, -1)]
    if not steps:
        raise TooLittleTraffic(f"{host} was never asked")
    # At one instant an end comes before a beginning: touching exchanges do not overlap.
    now = max_count = 0
    for _, change in sorted(steps):
        now += change
        max_count = max(max_count, now)
    return max_count


def hosts_in_motion(log: Iterable[Exchange]) -> int:
    """The largest number of exchanges open at the same instant over all hosts: how parallel the crawl was."""
    return max_in_flight((_as_host(exchange, "all") for exchange in log), "all")


def requested(log: Iterable[Exchange]) -> Counter[str]:
    """How often each URL was asked for, robots.txt included."""
    return Counter(f"http://{exchange.host}{exchange.path}" for exchange in log)


def disallowed_requested(log: Iterable[Exchange], robots: Mapping[str, str], agent: str = "*") -> list[str]:
    """The URLs that were asked for although the robots.txt of their host (host -> text) forbids them to `agent`."""
    rules = {}
    for host, text in robots.items():
        rules[host] = RobotFileParser()
        rules[host].parse(text.splitlines())
    return sorted(
        f"http://{exchange.host}{exchange.path}"
        for exchange in log
        if exchange.host in rules
        and exchange.path != "/robots.txt"
        and not rules[exchange.host].can_fetch(agent, f"http://{exchange.host}{exchange.path}")
    )


def asked_before_robots(log: Iterable[Exchange]) -> list[str]:
    """The hosts that were asked for something else before their first answered robots.txt had ended."""
    early = []
    exchanges = list(log)
    for host in hosts(exchanges):
        own = of_host(exchanges, host)
        answered = [exchange.ended_ns for exchange in own if exchange.path == "/robots.txt" and exchange.complete]
        others = [exchange.begun_ns for exchange in own if exchange.path != "/robots.txt"]
        if others and (not answered or min(others) < min(answered)):
            early.append(host)
    return early


def user_agents(log: Iterable[Exchange]) -> Counter[str]:
    """How often each User-Agent was seen."""
    return Counter(exchange.user_agent for exchange in log)


def fetched_more_than_once(log: Sequence[Exchange]) -> dict[str, int]:
    """URLs with more than one complete 200, and how many; robots.txt does not count."""
    answers = requested(
        exchange for exchange in log if exchange.complete and exchange.status == 200 and exchange.path != "/robots.txt"
    )
    return {url: count for url, count in answers.items() if count > 1}


def _as_host(exchange: Exchange, host: str) -> Exchange:
    return Exchange(
        host,
        exchange.method,
        exchange.path,
        exchange.user_agent,
        exchange.status,
        exchange.connection,
        exchange.begun_ns,
        exchange.ended_ns,
        exchange.complete,
    )
