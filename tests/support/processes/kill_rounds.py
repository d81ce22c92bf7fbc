"""Rounds of sudden death in one crawl: what is killed, and after how much traffic, drawn from a seed."""

import os
import random
import secrets
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tests.support.processes.crawl_process import Running, kill
from tests.support.web.exchange_log import Exchange
from tests.support.web.web_server import Web

SEED: Final = "ORB_TEST_SEED"
"""The variable that repeats a run's draws."""

VICTIMS: Final[Mapping[str, int]] = {"worker": 6, "master": 4, "broker": 4, "command": 3, "everything": 4}
"""What a deck of rounds holds: a process of one kind, the command (whose end ends the others), or all at once."""


def drawn_seed(otherwise: int | None = None) -> int:
    """The seed that the environment sets; else `otherwise`, or a new one."""
    drawn = secrets.randbelow(1 << 31) if otherwise is None else otherwise
    return int(os.environ.get(SEED) or drawn)


@dataclass(frozen=True, slots=True)
class Kill:
    """A round: the victim, when (time.monotonic_ns), and how many exchanges the web had answered by then."""

    victim: str
    at_ns: int
    answered: int


def rounds(seed: int, decks: int = 1) -> list[tuple[str, float]]:
    """Victims in the order drawn, each with its share (0..2, about 1 on average) of the traffic before it; one in five
    follows at once, so that recoveries are hit too."""
    draw = random.Random(seed)
    order: list[str] = []
    for _ in range(decks):
        deck = [victim for victim, times in VICTIMS.items() for _ in range(times)]
        draw.shuffle(deck)
        order += deck
    return [(victim, 0.0 if draw.random() < 0.2 else draw.uniform(0.0, 2.0)) for victim in order]


def play(run: Running, web: Web, plan: Sequence[tuple[str, float]], expected: int) -> list[Kill]:
    """Kill by `plan` while the crawl of about `expected` URLs goes on; the rounds are spread over what is left. The web
    answers a quarter of that more than a round waits for: the crawl is not over before them, however long we stand
    still."""
    kills = []
    for index, (victim, share) in enumerate(plan):
        log = web.log()
        answered = {f"{exchange.host}{exchange.path}" for exchange in log if exchange.complete}
        left = max(0, expected - len(answered))
        wanted = len(log) + (more := int(share * left / (len(plan) - index + 2)))
        web.answer(more + left // 4)
        run.wait_until(lambda wanted=wanted: len(web.log()) >= wanted, f"{wanted} requests were answered")  # type: ignore[misc]  # bound now
        kills.append(Kill(victim, _strike(run, victim, draw=index), len(web.log())))
    web.answer(None)
    return kills


def _strike(run: Running, victim: str, draw: int) -> int:
    """One round; the instant just before the signal, or where the whole run dies, when all of it has ended."""
    match victim:
        case "command" | "everything":
            if victim == "command":
                run.kill_command()
            else:
                run.kill_all()
            ended_ns = time.monotonic_ns()
            run.start()
            return ended_ns
        case "worker" | "master" | "broker":
            while True:
                living = run.wait_for(victim)
                at_ns = time.monotonic_ns()
                if kill(living[draw % len(living)]):
                    return at_ns
        case other:
            raise AssertionError(other)


def recoveries_s(kills: Sequence[Kill], log: Sequence[Exchange]) -> dict[str, list[float]]:
    """For each kind of victim, the seconds from each kill to the start of the next request that any host saw."""
    begun = sorted(exchange.begun_ns for exchange in log)
    found: dict[str, list[float]] = {}
    for death in kills:
        after = next((at for at in begun if at > death.at_ns), None)
        assert after is not None, f"no request followed the kill of {death.victim}: the crawl was over"
        found.setdefault(death.victim, []).append((after - death.at_ns) / 1e9)
    return found


def report(kills: Sequence[Kill], log: Sequence[Exchange]) -> str:
    """What was done, for people; the figures of a run."""
    lines = [f"{len(kills)} kills over {len(log)} exchanges"]
    times = Counter(death.victim for death in kills)
    for victim, waits in recoveries_s(kills, log).items():
        lines.append(
            f"  {victim}: {times[victim]} kills, next request after {sorted(waits)[len(waits) // 2]:.2f} s (median), "
            f"{max(waits):.2f} s (longest)"
        )
    return "\n".join(lines)
