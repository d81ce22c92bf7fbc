"""The history of schedules: the outcomes of their due times."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from shared.domain.crawl.state import Verb
from shared.domain.ids import CrawlId


class FiringOutcome(StrEnum):
    """The outcome of a due time, as a whole or for one crawl.

    - FIRED: the verb was applied.
    - QUEUED: the verb waits for the end of the crawl's run.
    - SKIPPED: the verb was dropped, because the crawl's run had not ended.
    - REFUSED: the verb is not legal in the crawl's state, or there is no crawl.
    - MISSED: the leader handled the due time too late, so nothing fired.
    """

    FIRED = "fired"
    QUEUED = "queued"
    SKIPPED = "skipped"
    REFUSED = "refused"
    MISSED = "missed"


@dataclass(frozen=True, slots=True)
class CrawlEffect:
    """The effect of a firing on one crawl, decided at `at_ms` (Unix ms).

    `crawl_id` is None if no crawl had the name `crawl`. `command`: the id of the command that applies the verb, if the
    verb needs one.
    """

    crawl: str
    crawl_id: CrawlId | None
    outcome: FiringOutcome
    detail: str
    at_ms: int
    command: str | None = None


@dataclass(frozen=True, slots=True)
class Firing:
    """A line of a schedule's history: the outcome of the due time `due_ms`, decided at `at_ms` (both Unix ms).

    If the outcome is MISSED, `missed` is the number of due times from `due_ms` to `until_ms`, all of which were missed.
    """

    schedule_id: int
    due_ms: int
    at_ms: int
    verb: Verb
    outcome: FiringOutcome
    detail: str
    missed: int
    until_ms: int
    effects: Sequence[CrawlEffect] = ()


@dataclass(frozen=True, slots=True)
class HistoryChange:
    """The lines that one transaction of the leader added to a schedule's history, or changed there.

    - `schedule`: the name of the schedule.
    - `firings`: the lines, oldest first. The transaction either added all of them, or changed all of them.
    - `waited`: False if the lines were added. True if the lines existed, and their outcome was changed from QUEUED to
      another one, because the wait for the end of a crawl's run is over.
    """

    schedule: str
    firings: Sequence[Firing]
    waited: bool = False
