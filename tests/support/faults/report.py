"""What a run came to, as a table for people."""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from tests.support.faults.history import History, Round
from tests.support.faults.validation import Promise, Violation, impolite, parts


def report(histories: Sequence[History], violations: Sequence[Violation]) -> str:
    """The figures of one run or of several, in Markdown."""
    rounds = [round for history in histories for round in history.rounds]
    done = [round for round in rounds if round.skipped is None]
    broken = Counter(violation.promise for violation in violations)
    exchanges = sum(len(history.exchanges) for history in histories)
    excused = sum(1 for history in histories for _ in impolite(history, after_stop=True))
    totals = {
        "seeds (of the draws)": ", ".join(str(history.seed) for history in histories),
        "minutes": f"{sum(history.seconds for history in histories) / 60:.1f}",
        "rounds": str(len(done)),
        "crawls": str(sum(len(history.crawls) for history in histories)),
        "crawls deleted under way": str(sum(len(history.deleted) for history in histories)),
        "requests that web servers saw": str(exchanges),
        "URLs that ended": str(sum(len(crawl.urls) for history in histories for crawl in history.crawls)),
        "seeds acknowledged under faults": str(sum(len(crawl.seeds) for h in histories for crawl in h.crawls)),
        "answers to clients": str(sum(sum(history.statuses.values()) for history in histories)),
        "messages published again": str(sum(history.repeated for history in histories)),
        "messages that nobody can read": str(
            sum(len(history.unreadable) + len(history.noise) for history in histories)
        ),
        "changed scopes": str(sum(history.rescoped for history in histories)),
        "pages read again for a wider scope": str(sum(history.rediscovered for history in histories)),
        "owners' transactions": str(sum(len(history.fences) for history in histories)),
        **{promise.value: str(broken[promise]) for promise in Promise},
        "requests within the documented limit of politeness": str(excused),
    }
    for history in histories:
        for shared in history.shared:
            used = parts(history, shared)
            said = ", ".join(f"{used[crawl.agent]:.0%} by weight {crawl.weight}" for crawl in shared.crawls)
            totals[f"parts of {shared.what}, seed {history.seed}"] = said
    width = max(map(len, totals))
    lines = [f"| {'':{width}} | |", f"|{'-' * (width + 2)}|---|"]
    lines += [f"| {name:{width}} | {value} |" for name, value in totals.items()]
    lines += ["", *_faults(histories)]
    skipped = Counter(f"{round.fault.name}: {round.skipped}" for round in rounds if round.skipped is not None)
    lines += [f"\nNot done {times} times, {reason}." for reason, times in skipped.items()]
    return "\n".join(lines)


def _faults(histories: Sequence[History]) -> list[str]:
    """A row for each fault: how often, how long until the cluster was whole, how long no host was asked anything."""
    waits: dict[str, list[float]] = {}
    pauses: dict[str, list[float]] = {}
    for history in histories:
        begun_ns = sorted(exchange.begun_ns for exchange in history.exchanges)
        for round in history.rounds:
            if round.skipped is None:
                pauses.setdefault(round.fault.name, []).append(pause_s(begun_ns, round))
                recovered = waits.setdefault(round.fault.name, [])
                recovered += [] if round.recovery_s is None else [round.recovery_s]
    width = max([len("fault"), *map(len, pauses)])
    heads = ("rounds", "whole after, median (s)", "longest (s)", "longest without a request (s)")
    lines = [f"| {'fault':{width}} | {' | '.join(heads)} |", f"|{'-' * (width + 2)}|---|---|---|---|"]
    for name in sorted(pauses):
        own = sorted(waits[name])
        median, longest = (f"{own[len(own) // 2]:.1f}", f"{own[-1]:.1f}") if own else ("-", "-")
        lines.append(f"| {name:{width}} | {len(pauses[name])} | {median} | {longest} | {max(pauses[name]):.1f} |")
    return lines


def pause_s(begun_ns: Sequence[int], round: Round) -> float:
    """The longest time between two requests of the sorted `begun_ns`, from the last one before the fault to the first
    one after its end."""
    first = max(0, bisect_left(begun_ns, round.begun_ns) - 1)
    last = bisect_right(begun_ns, round.over_ns) + 1
    return max((after - before for before, after in pairwise(begun_ns[first:last])), default=0) / 1e9
