"""Derive events from the difference between an earlier and the current state. Pure functions.

If a change takes several steps, each step gets an event, even if no comparison saw the state between them. Example: a
crawl was `created` and is now `running`. The events are `started` and `seeded`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, assert_never

from shared.domain.crawl.state import CANCELLED
from shared.domain.frontier.states import CrawlState
from shared.ports.overview import CrawlOverview
from shared.wire.keys import MemberRecord

_AT_REST = (CrawlState.CREATED, CrawlState.FINISHED)


def of_crawl(before: CrawlOverview | None, after: CrawlOverview | None) -> list[str]:
    """Return the actions of the events, such as `started`, that lead from the state `before` of a crawl to `after`.

    They are in the order of time. A state of None means that the crawl does not exist.
    """
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
        # Labels were changed, or verbs led back to the same state.
        actions.append("updated")
    return actions


def _turned(before: CrawlState, after: CrawlOverview, *, renewed: bool) -> list[str]:
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
        case CrawlState.CREATED | CrawlState.DELETED:  # No verb leads there from another state.
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
"""For each state of a crawl, the actions of the events that report its way to `running`."""


@dataclass(frozen=True, slots=True)
class SeenMember:
    """The state of a member that events report: when its process was started (Unix ms), and if it is draining."""

    started_at_ms: int
    draining: bool


def seen(records: Mapping[str, MemberRecord]) -> dict[str, SeenMember]:
    """Reduce the records of members to the fields that `of_members` compares. Keys are member ids."""
    return {name: SeenMember(record.started_at_ms, record.draining) for name, record in records.items()}


def of_members(before: Mapping[str, SeenMember], after: Mapping[str, SeenMember]) -> list[tuple[str, str]]:
    """Return how the members changed, as (member id, action) in the order of ids.

    An action is `joined`, `left`, `drain_started` or `drain_cancelled`.
    """
    changes: list[tuple[str, str]] = []
    for name in sorted({*before, *after}):
        was, now = before.get(name), after.get(name)
        if now is None:
            changes.append((name, "left"))
        elif was is None or was.started_at_ms != now.started_at_ms:
            changes.append((name, "joined"))
        elif was.draining != now.draining:
            changes.append((name, "drain_started" if now.draining else "drain_cancelled"))
    return changes
