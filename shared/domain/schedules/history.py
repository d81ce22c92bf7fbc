"""The history of schedules: what became of their due times."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from shared.domain.crawl.state import Verb
from shared.domain.ids import CrawlId


class FiringOutcome(StrEnum):
    """What became of a due time, or of one crawl at it."""

    FIRED = "fired"
    QUEUED = "queued"
    SKIPPED = "skipped"
    REFUSED = "refused"
    MISSED = "missed"


@dataclass(frozen=True, slots=True)
class CrawlEffect:
    """What a firing did to one crawl. `crawl_id` is None if there was no crawl of that name."""

    crawl: str
    crawl_id: CrawlId | None
    outcome: FiringOutcome
    detail: str
    at_ms: int
    command: str | None = None


@dataclass(frozen=True, slots=True)
class Firing:
    """What became of a due time. `missed` is the number of due times, from `due_ms` to `until_ms`, that were missed."""

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
class Fired:
    """What one transaction of the leader did to a schedule: lines of the history, oldest first.

    The lines are new, or with `waited` have another outcome than before, since an effect that waited was carried out.
    """

    schedule: str
    firings: Sequence[Firing]
    waited: bool = False
