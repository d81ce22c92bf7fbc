"""The verbs that an operator may use in each state of a crawl, and the state that each leads to.

A FINISHED crawl can be continued: `start` resumes it (with a greater budget, say), `reset` begins anew under another
id. Transitions that the leader makes by itself are not verbs: SEEDING to RUNNING, RUNNING to FINISHED, and back when a
complete crawl has work again.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from shared.domain.frontier.states import CrawlState

CANCELLED: Final = "cancelled"
"""The finish reason of a crawl that an operator cancelled."""


COMPLETE: Final = "complete"
"""The finish reason of a crawl that had nothing left to fetch."""


REFRESHED: Final = "refreshed"
"""The finish reason of a crawl that fetched every page that was due when its run began."""


class Verb(StrEnum):
    """What an operator can ask of a crawl by one request."""

    START = "start"
    REFRESH = "refresh"
    PAUSE = "pause"
    RESUME = "resume"
    CANCEL = "cancel"
    RESET = "reset"
    RETRY_FAILED = "retry-failed"
    DELETE = "delete"


class DesiredRun(StrEnum):
    """Whether the declaration of a crawl lets it run. A declaration without it leaves that to verbs and schedules."""

    RUNNING = "running"
    PAUSED = "paused"


DECIDED_BY_DESIRED: Final = frozenset({Verb.START, Verb.REFRESH, Verb.PAUSE, Verb.RESUME})
"""Verbs that no schedule may apply to a crawl that declares whether it runs."""


class IllegalTransition(Exception):
    """The verb is not allowed in the crawl's state; `legal` has the verbs that are."""

    def __init__(self, verb: Verb, state: CrawlState) -> None:
        self.verb, self.state, self.legal = verb, state, allowed_verbs(state)
        super().__init__(f"a crawl that is {state} does not allow {verb}")


class NoRecrawl(IllegalTransition):
    """The crawl fetches each page once, so it cannot be refreshed; `legal` has the verbs that are allowed."""

    def __init__(self, state: CrawlState) -> None:
        super().__init__(Verb.REFRESH, state)
        self.legal = allowed_verbs(state, recrawls=False)
        self.args = ("the crawl fetches each page once: set `recrawl` in its spec before a refresh",)


class RunUnderWay(IllegalTransition):
    """A run of the crawl has begun and is not over, so no refresh can begin. `refreshing`: that run is one."""

    def __init__(self, state: CrawlState, *, refreshing: bool) -> None:
        super().__init__(Verb.REFRESH, state)
        ends = "resume it" if state is CrawlState.PAUSED else "wait for its end"
        self.args = (
            f"a refresh of the crawl has begun already: {ends}"
            if refreshing
            else "the run that `start` began fetches due pages by itself and has no end: cancel it before a refresh",
        )


@dataclass(frozen=True, slots=True)
class CrawlStatus:
    """A crawl's state, its finish reason, and for a paused crawl the state that `resume` leads to."""

    state: CrawlState
    resumes_as: CrawlState | None = None
    reason: str | None = None


_LEGAL: Final[dict[CrawlState, tuple[Verb, ...]]] = {
    CrawlState.CREATED: (Verb.START, Verb.REFRESH, Verb.CANCEL, Verb.RESET, Verb.DELETE),
    CrawlState.SEEDING: (Verb.PAUSE, Verb.CANCEL, Verb.RESET, Verb.RETRY_FAILED, Verb.DELETE),
    CrawlState.RUNNING: (Verb.PAUSE, Verb.CANCEL, Verb.RESET, Verb.RETRY_FAILED, Verb.DELETE),
    CrawlState.PAUSED: (Verb.RESUME, Verb.CANCEL, Verb.RESET, Verb.RETRY_FAILED, Verb.DELETE),
    CrawlState.FINISHED: (Verb.START, Verb.REFRESH, Verb.RESET, Verb.RETRY_FAILED, Verb.DELETE),
    CrawlState.DELETED: (),
}


def allowed_verbs(state: CrawlState, *, recrawls: bool = True) -> tuple[Verb, ...]:
    """Return the verbs that an operator may use on a crawl in `state`. `recrawls`: it fetches its pages again."""
    return tuple(verb for verb in _LEGAL[state] if recrawls or verb is not Verb.REFRESH)


def status_after(verb: Verb, now: CrawlStatus) -> CrawlStatus:
    """Return the status that `verb` leads to from `now`. Raise IllegalTransition if the verb is not allowed.

    RESET and DELETE end this crawl id, so both lead to DELETED.
    """
    if verb not in _LEGAL[now.state]:
        raise IllegalTransition(verb, now.state)
    match verb:
        case Verb.START | Verb.REFRESH:
            return CrawlStatus(CrawlState.SEEDING)
        case Verb.PAUSE:
            return CrawlStatus(CrawlState.PAUSED, resumes_as=now.state)
        case Verb.RESUME:
            return CrawlStatus(now.resumes_as or CrawlState.SEEDING)
        case Verb.CANCEL:
            return CrawlStatus(CrawlState.FINISHED, reason=CANCELLED)
        case Verb.RETRY_FAILED:
            return CrawlStatus(CrawlState.RUNNING) if now.state is CrawlState.FINISHED else now
        case Verb.RESET | Verb.DELETE:
            return CrawlStatus(CrawlState.DELETED)


def refresh_after(verb: Verb, refresh_ms: int, now_ms: int) -> int:
    """Return when the crawl's refresh began (Unix ms) after `verb`, or 0 if its run is no refresh.

    `refresh_ms` is the value before the verb, and `now_ms` the time at which it is applied. A refresh that is paused or
    cancelled stays one. So a retry of failed URLs after its end fetches no page that became due later.
    """
    match verb:
        case Verb.REFRESH:
            return now_ms
        case Verb.PAUSE | Verb.RESUME | Verb.CANCEL | Verb.RETRY_FAILED:
            return refresh_ms
        case Verb.START | Verb.RESET | Verb.DELETE:
            return 0


def initial_state(desired: DesiredRun | None, *, start: bool) -> CrawlState:
    """Return the state in which a crawl is created. `start` decides where nothing is declared."""
    runs = start if desired is None else desired is DesiredRun.RUNNING
    return CrawlState.SEEDING if runs else CrawlState.CREATED


def drifted(desired: DesiredRun | None, now: CrawlStatus) -> bool:
    """Return True if an operator made the crawl do something else than its declaration says.

    A crawl that finished by itself has not drifted, nor has one that waits for a resource.
    """
    match desired:
        case None:
            return False
        case DesiredRun.RUNNING:
            stopped = now.state in (CrawlState.CREATED, CrawlState.PAUSED)
            return stopped or (now.state is CrawlState.FINISHED and now.reason == CANCELLED)
        case DesiredRun.PAUSED:
            return now.state in (CrawlState.SEEDING, CrawlState.RUNNING)


def status_as_desired(desired: DesiredRun | None, now: CrawlStatus) -> CrawlStatus:
    """Return the status that the declaration leads to from `now`: that of the verb that ends the drift, if there is
    any."""
    if not drifted(desired, now):
        return now
    if desired is DesiredRun.PAUSED:
        return status_after(Verb.PAUSE, now)
    return status_after(Verb.RESUME if now.state is CrawlState.PAUSED else Verb.START, now)


def takes_seeds(now: CrawlStatus) -> bool:
    """Return True if seeds may be added to a crawl with this status.

    A complete crawl runs again with new seeds, and a refreshed one fetches them in its next run. A crawl that was
    cancelled or has spent its budget refuses them: they would wait for a `start` that may never come.
    """
    if now.state is CrawlState.FINISHED:
        return now.reason in (COMPLETE, REFRESHED)
    return now.state is not CrawlState.DELETED


def status_after_new_spec(now: CrawlStatus) -> CrawlStatus:
    """Return the status that a new revision of the spec leads to from `now`.

    Its seeds are published again (SEEDING), unless the crawl has not begun or is over.
    """
    match now.state:
        case CrawlState.RUNNING:
            return CrawlStatus(CrawlState.SEEDING)
        case CrawlState.PAUSED:
            return CrawlStatus(CrawlState.PAUSED, resumes_as=CrawlState.SEEDING)
        case _:
            return now
