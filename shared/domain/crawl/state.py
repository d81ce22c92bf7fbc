"""The verbs that an operator may use in each state of a crawl, and the state that each leads to.

A FINISHED crawl can be continued: `start` resumes it (with a greater budget, for example), and `reset` starts it anew
under another id. Transitions that the leader makes by itself are not verbs: SEEDING to RUNNING, RUNNING to FINISHED,
and FINISHED to RUNNING or SEEDING when a complete crawl has work again.
"""

from enum import StrEnum
from typing import Final

from msgspec import Struct

from shared.domain.frontier.states import CrawlState

CANCELLED: Final = "cancelled"
"""The finish reason of a crawl that an operator cancelled."""


COMPLETE: Final = "complete"
"""The finish reason of a crawl that had nothing left to fetch."""


REFRESHED: Final = "refreshed"
"""The finish reason of a crawl that fetched every page that was due when its run began."""


class Verb(StrEnum):
    """What an operator can ask of a crawl in one request, such as `start` or `pause`."""

    START = "start"
    REFRESH = "refresh"
    PAUSE = "pause"
    RESUME = "resume"
    CANCEL = "cancel"
    RESET = "reset"
    RETRY_FAILED = "retry-failed"
    DELETE = "delete"


class DesiredRun(StrEnum):
    """The field `desired` of a declared crawl: whether the crawl shall run.

    Without it, only verbs and schedules decide whether the crawl runs.
    """

    RUNNING = "running"
    PAUSED = "paused"


DECIDED_BY_DESIRED: Final = frozenset({Verb.START, Verb.REFRESH, Verb.PAUSE, Verb.RESUME})
"""The verbs that set whether a crawl runs. If the crawl's declaration has `desired`, no schedule may apply them."""


class IllegalTransition(Exception):
    """Raised for a verb that is not allowed in the crawl's state. `legal` has the verbs that are allowed.

    `recrawls`: the crawl fetches its pages again. If it does not, `refresh` is not in `legal`.
    """

    def __init__(self, verb: Verb, state: CrawlState, *, recrawls: bool = True) -> None:
        self.verb, self.state, self.legal = verb, state, allowed_verbs(state, recrawls=recrawls)
        super().__init__(f"a crawl that is {state} does not allow {verb}")


class NoRecrawl(IllegalTransition):
    """Raised for `refresh` if the crawl fetches each page only once. `legal` has the verbs that are allowed."""

    def __init__(self, state: CrawlState) -> None:
        super().__init__(Verb.REFRESH, state, recrawls=False)
        self.args = ("the crawl fetches each page once: set `recrawl` in its spec before a refresh",)


class RunUnderWay(IllegalTransition):
    """Raised for `refresh` if an earlier run of the crawl has not ended.

    `refreshing`: True if the earlier run is a refresh itself, False if `start` began it.
    """

    def __init__(self, state: CrawlState, *, refreshing: bool) -> None:
        super().__init__(Verb.REFRESH, state)
        ends = "resume it" if state is CrawlState.PAUSED else "wait for its end"
        self.args = (
            f"a refresh of the crawl has begun already: {ends}"
            if refreshing
            else "the run that `start` began fetches due pages by itself and has no end: cancel it before a refresh",
        )


class CrawlStatus(Struct, frozen=True):
    """A crawl's state with the details that verbs depend on.

    - `resumes_as`: if the crawl is PAUSED, the state to which `resume` leads. If it is FINISHED and its spec may have
      seeds that it has not published, SEEDING: it publishes them when it runs again. Otherwise None.
    - `reason`: the finish reason, None if not finished.
    """

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
    """Return the verbs that an operator may use on a crawl in `state`.

    `recrawls`: the crawl fetches its pages again. If it does not, `refresh` is left out.
    """
    return tuple(verb for verb in _LEGAL[state] if recrawls or verb is not Verb.REFRESH)


def status_after(verb: Verb, now: CrawlStatus, *, recrawls: bool = True) -> CrawlStatus:
    """Return the status to which `verb` leads from `now`. Raise IllegalTransition if the verb is not allowed.

    `recrawls`: the crawl fetches its pages again. If it does not, the error does not name `refresh` as allowed.
    RESET and DELETE both give DELETED, because a reset crawl gets another id.
    """
    if verb not in _LEGAL[now.state]:
        raise IllegalTransition(verb, now.state, recrawls=recrawls)
    match verb:
        case Verb.START | Verb.REFRESH:
            return CrawlStatus(CrawlState.SEEDING)
        case Verb.PAUSE:
            return CrawlStatus(CrawlState.PAUSED, resumes_as=now.state)
        case Verb.RESUME:
            return CrawlStatus(now.resumes_as or CrawlState.SEEDING)
        case Verb.CANCEL:
            unseeded = now.state is not CrawlState.RUNNING and now.resumes_as is not CrawlState.RUNNING
            return CrawlStatus(CrawlState.FINISHED, CrawlState.SEEDING if unseeded else None, CANCELLED)
        case Verb.RETRY_FAILED:
            return CrawlStatus(now.resumes_as or CrawlState.RUNNING) if now.state is CrawlState.FINISHED else now
        case Verb.RESET | Verb.DELETE:
            return CrawlStatus(CrawlState.DELETED)


def refresh_after(verb: Verb, refresh_ms: int, now_ms: int) -> int:
    """Return the new start time of a crawl's refresh (Unix ms) for a verb. 0 means that its run is no refresh.

    - `refresh` begins a refresh: return `now_ms`, the time of the verb.
    - `start`, `reset` and `delete` end it: return 0.
    - Other verbs change nothing: return `refresh_ms`, the start time before the verb.
    """
    match verb:
        case Verb.REFRESH:
            return now_ms
        case Verb.PAUSE | Verb.RESUME | Verb.CANCEL | Verb.RETRY_FAILED:
            return refresh_ms
        case Verb.START | Verb.RESET | Verb.DELETE:
            return 0


def initial_state(desired: DesiredRun | None, *, start: bool) -> CrawlState:
    """Return the state of a new crawl: SEEDING if it shall run, else CREATED.

    `desired` decides. If it is None, `start` decides.
    """
    runs = start if desired is None else desired is DesiredRun.RUNNING
    return CrawlState.SEEDING if runs else CrawlState.CREATED


def drifted(desired: DesiredRun | None, now: CrawlStatus) -> bool:
    """Return True if a verb made the crawl do something other than its declaration says.

    Return False if nothing is declared. A crawl that finished by itself, or waits for a resource, has not drifted.
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
    """Return the status of a crawl after the verb that makes the crawl do what `desired` declares.

    - `desired` is PAUSED, but the crawl runs: the status after `pause`.
    - `desired` is RUNNING, but the crawl is paused: the status after `resume`.
    - `desired` is RUNNING, but the crawl was never started or was cancelled: the status after `start`.
    - The crawl has not drifted from `desired`: `now`, because no verb is needed.
    """
    if not drifted(desired, now):
        return now
    if desired is DesiredRun.PAUSED:
        return status_after(Verb.PAUSE, now)
    return status_after(Verb.RESUME if now.state is CrawlState.PAUSED else Verb.START, now)


def takes_seeds(now: CrawlStatus) -> bool:
    """Return True if seeds may be added to a crawl with this status.

    Return False for a crawl that was deleted, or that finished because it was cancelled or its budget was spent.
    """
    if now.state is CrawlState.FINISHED:
        return now.reason in (COMPLETE, REFRESHED)
    return now.state is not CrawlState.DELETED


def status_after_new_spec(now: CrawlStatus) -> CrawlStatus:
    """Return the status that a crawl with the status `now` gets when its spec gets a new revision.

    The seeds of the new spec must be published, which a crawl does in the state SEEDING. So the result depends on the
    state of `now`:

    - RUNNING: the result is SEEDING.
    - PAUSED: the result is PAUSED with `resumes_as` SEEDING. The verb `resume` then leads to SEEDING.
    - FINISHED: the result is FINISHED with `resumes_as` SEEDING. If the crawl runs again, it begins with SEEDING.
    - Another state: the result is `now`.
    """
    match now.state:
        case CrawlState.RUNNING:
            return CrawlStatus(CrawlState.SEEDING)
        case CrawlState.PAUSED | CrawlState.FINISHED:
            return CrawlStatus(now.state, CrawlState.SEEDING, now.reason)
        case _:
            return now
