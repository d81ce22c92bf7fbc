"""What happened, as the difference of how things stood and how they stand: pure, so that nothing is missed for long.

Whoever compares sees the last of several changes and tells of those that must have been between.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, assert_never

from shared.domain.crawl_state import CANCELLED
from shared.domain.frontier import CrawlState
from shared.ports.overview import CrawlStanding
from shared.wire.keys import MemberRecord

_AT_REST = (CrawlState.CREATED, CrawlState.FINISHED)


def of_crawl(before: CrawlStanding | None, after: CrawlStanding | None) -> list[str]:
    """What became of one crawl id, oldest first. None: it is not there, or no more."""
    if after is None:
        return [] if before is None else ["deleted"]
    actions = []
    state, revision, version = CrawlState.CREATED, 1, after.version
    if before is None:
        actions.append("created")
    else:
        state, revision, version = before.state, before.revision, before.version
    if after.revision > revision:
        actions.append("updated")
    if after.state is not state:
        actions += _turned(state, after, renewed="updated" in actions)
    elif not actions and after.version > version:
        # Labels, or verbs that led back to where it was.
        actions.append("updated")
    return actions


def _turned(before: CrawlState, after: CrawlStanding, *, renewed: bool) -> list[str]:
    match after.state:
        case CrawlState.SEEDING:
            if before is CrawlState.PAUSED:
                return ["resumed"]
            return [] if renewed and before not in _AT_REST else ["started"]
        case CrawlState.RUNNING:
            return list(_UP_TO_RUNNING[before])
        case CrawlState.PAUSED:
            return ["started", "paused"] if before in _AT_REST else ["paused"]
        case CrawlState.FINISHED:
            # An operator ends a crawl in any state; by itself it ends only once it has run.
            return ["finished"] if after.finished_reason == CANCELLED else [*_UP_TO_RUNNING[before], "finished"]
        case CrawlState.CREATED | CrawlState.DELETED:  # no verb leads there from another state
            return [] if renewed else ["updated"]
        case _:
            assert_never(after.state)


_UP_TO_RUNNING: Final[Mapping[CrawlState, Sequence[str]]] = {
    CrawlState.CREATED: ("started", "seeded"),
    CrawlState.SEEDING: ("seeded",),
    CrawlState.RUNNING: (),
    CrawlState.PAUSED: ("resumed",),
    CrawlState.FINISHED: ("started",),
    CrawlState.DELETED: (),
}
"""What a crawl in a state goes through until it runs."""


@dataclass(frozen=True, slots=True)
class SeenMember:
    """A member as it was seen last: a process, and whether it drains."""

    started_at_ms: int
    draining: bool


def seen(records: Mapping[str, MemberRecord]) -> dict[str, SeenMember]:
    """Who lives, as far as events tell of it."""
    return {name: SeenMember(record.started_at_ms, record.draining) for name, record in records.items()}


def of_members(before: Mapping[str, SeenMember], after: Mapping[str, SeenMember]) -> list[tuple[str, str]]:
    """Who came, went, or was told to drain: (id, action), in the order of ids."""
    told: list[tuple[str, str]] = []
    for name in sorted({*before, *after}):
        was, now = before.get(name), after.get(name)
        if now is None:
            told.append((name, "left"))
        elif was is None or was.started_at_ms != now.started_at_ms:
            told.append((name, "joined"))
        elif was.draining != now.draining:
            told.append((name, "draining" if now.draining else "undrained"))
    return told
