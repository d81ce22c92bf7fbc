"""Judge a history of schedules: each due time fired once, or was missed by the catch-up rule. Pure.

The evidence is the audit log (which verb was applied for which due time), the ids of crawls (each reset allots one) and
the history of the schedules, each with the real time at which it was first seen. The due times are computed here, as
multiples of the interval. Clocks of masters are wrong by at most `clock_error_ms`.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

CLOCK_ERROR_MS: Final = 60_000


@dataclass(frozen=True)
class DeclaredSchedule:
    """A schedule under judgement. Its due times are the multiples of `every_ms` from `first_ms` on.

    `waits`: a firing may wait for the end of a run, so it may come late.
    """

    schedule_id: int
    verb: str
    crawls: tuple[str, ...]
    first_ms: int
    every_ms: int
    late_ms: int
    jitter_ms: int = 0
    catches_up: bool = False
    waits: bool = False


@dataclass
class SeenLine:
    """A line of the history, with the real time at which it was first seen and the latest outcome."""

    due_ms: int
    seen_ms: int
    outcome: str
    missed: int
    until_ms: int


@dataclass
class Evidence:
    """What a run left behind, as an observer saw it.

    `applied`: real times by schedule, due time and crawl. `crawl_ids`: the ids that each crawl has had. `commands`: how
    many partitions acknowledged the command of a schedule's due time.
    """

    applied: dict[tuple[int, int, str], list[int]] = field(default_factory=dict)
    lines: dict[tuple[int, int], SeenLine] = field(default_factory=dict)
    crawl_ids: Mapping[str, int] = field(default_factory=dict)
    commands: Counter[tuple[int, int]] = field(default_factory=Counter)


@dataclass(frozen=True)
class Verdict:
    """What became of a due time, when it was seen (None: never), and what is wrong with that, if anything is."""

    schedule_id: int
    due_ms: int
    seen_ms: int | None
    became: str
    wrong: str = ""


def judged(
    declared: Sequence[DeclaredSchedule], evidence: Evidence, until_ms: int, partitions: int
) -> Sequence[Verdict]:
    """Return a verdict for each due time up to `until_ms`, and for what fits no due time."""
    verdicts = [verdict for one in declared for verdict in _verdicts(one, evidence, until_ms, partitions)]
    known = {(each.schedule_id, each.due_ms) for each in verdicts}
    for schedule_id, due_ms, _ in evidence.applied:
        if (schedule_id, due_ms) not in known and due_ms <= until_ms:
            verdicts.append(Verdict(schedule_id, due_ms, None, "fired", "there is no such due time"))
    return [*verdicts, *_wrong_ids(declared, evidence)]


def _verdicts(one: DeclaredSchedule, evidence: Evidence, until_ms: int, partitions: int) -> Iterator[Verdict]:
    lines = {due: line for (schedule, due), line in evidence.lines.items() if schedule == one.schedule_id}
    for due_ms in range(one.first_ms, until_ms + 1, one.every_ms):
        applied = {
            crawl: seen for crawl in one.crawls if (seen := evidence.applied.get((one.schedule_id, due_ms, crawl)))
        }
        line = lines.get(due_ms) or _covering(one, lines, due_ms)
        seen_ms = min((min(each) for each in applied.values()), default=None if line is None else line.seen_ms)
        became = "left out" if line is None else line.outcome
        wrong = _wrong(one, due_ms, applied, line)
        if not wrong and line is not None and line.outcome == "fired" and one.verb == "retry-failed":
            published = evidence.commands[one.schedule_id, due_ms]
            wrong = "" if published == partitions else f"{published} partitions have its command"
        yield Verdict(one.schedule_id, due_ms, seen_ms, became, wrong)


def _covering(one: DeclaredSchedule, lines: Mapping[int, SeenLine], due_ms: int) -> SeenLine | None:
    """Return the line of due times missed in a row that has this one."""
    return next((line for line in lines.values() if line.due_ms < due_ms <= line.until_ms), None)


def _wrong(one: DeclaredSchedule, due_ms: int, applied: Mapping[str, Sequence[int]], line: SeenLine | None) -> str:
    if any(len(seen) > 1 for seen in applied.values()):
        return "fired twice"
    if line is None:
        return "left out of the history" if applied else "left out"
    match line.outcome:
        case "fired":
            if not applied:
                return "the history has it as fired, and the audit log does not"
            return "" if one.waits else _wrong_time(one, due_ms, min(min(seen) for seen in applied.values()))
        case "missed":
            return "missed and fired" if applied else _needless(one, due_ms, line)
        case "skipped" | "queued":
            return f"{line.outcome} and fired" if applied else ""
        case other:
            return f"the outcome is {other}"


def _wrong_time(one: DeclaredSchedule, due_ms: int, at_ms: int) -> str:
    if at_ms < due_ms - CLOCK_ERROR_MS:
        return "fired too early"
    if at_ms <= due_ms + one.jitter_ms + one.late_ms + CLOCK_ERROR_MS:
        return ""
    if not one.catches_up:
        return "fired too late"
    return "" if due_ms + one.every_ms + one.jitter_ms > at_ms - CLOCK_ERROR_MS else "fired late, and not the last"


def _needless(one: DeclaredSchedule, due_ms: int, line: SeenLine) -> str:
    if line.missed != (line.until_ms - line.due_ms) // one.every_ms + 1:
        return "the line counts other due times"
    if line.seen_ms <= due_ms + one.late_ms - CLOCK_ERROR_MS:
        return "missed in time"
    if one.catches_up and due_ms + one.every_ms > line.seen_ms + CLOCK_ERROR_MS:
        return "missed, and the last of those that were late"
    return ""


def _wrong_ids(declared: Sequence[DeclaredSchedule], evidence: Evidence) -> Iterator[Verdict]:
    """Yield a verdict for each crawl that has other ids than its resets allotted."""
    resets = Counter(crawl for (_, _, crawl), seen in evidence.applied.items() for _ in seen)
    for one in declared:
        for crawl in one.crawls if one.verb == "reset" else ():
            if evidence.crawl_ids.get(crawl, 0) != resets[crawl] + 1:
                yield Verdict(one.schedule_id, 0, None, "reset", f"{crawl} has {evidence.crawl_ids.get(crawl)} ids")
