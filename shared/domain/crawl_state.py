"""Which of an operator's verbs are legal in which state of a crawl, and where they lead.

FINISHED is final for nobody: `start` takes it up again (with a greater budget, say), `reset` begins anew under another
id. What the leader does by itself (SEEDING to RUNNING, RUNNING to FINISHED, and back where a crawl that was complete
has something to do again) is no verb.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from shared.domain.frontier import CrawlState

CANCELLED: Final = "cancelled"
"""The `finished_reason` of a crawl that an operator ended."""


COMPLETE: Final = "complete"
"""The `finished_reason` of a crawl that had nothing left to do."""


class Verb(StrEnum):
    """What an operator can ask of a crawl."""

    START = "start"
    PAUSE = "pause"
    RESUME = "resume"
    CANCEL = "cancel"
    RESET = "reset"
    RETRY_FAILED = "retry-failed"
    DELETE = "delete"


class IllegalTransition(Exception):
    """`verb` means nothing in `state`; `legal` are those that do."""

    def __init__(self, verb: Verb, state: CrawlState) -> None:
        self.verb, self.state, self.legal = verb, state, legal(state)
        super().__init__(f"a crawl that is {state} cannot be asked to {verb}")


@dataclass(frozen=True, slots=True)
class Standing:
    """A crawl's state as far as verbs are concerned. `resumes_as`: what a paused crawl was, None unless PAUSED."""

    state: CrawlState
    resumes_as: CrawlState | None = None
    reason: str | None = None


_LEGAL: Final[dict[CrawlState, tuple[Verb, ...]]] = {
    CrawlState.CREATED: (Verb.START, Verb.CANCEL, Verb.RESET, Verb.DELETE),
    CrawlState.SEEDING: (Verb.PAUSE, Verb.CANCEL, Verb.RESET, Verb.RETRY_FAILED, Verb.DELETE),
    CrawlState.RUNNING: (Verb.PAUSE, Verb.CANCEL, Verb.RESET, Verb.RETRY_FAILED, Verb.DELETE),
    CrawlState.PAUSED: (Verb.RESUME, Verb.CANCEL, Verb.RESET, Verb.RETRY_FAILED, Verb.DELETE),
    CrawlState.FINISHED: (Verb.START, Verb.RESET, Verb.RETRY_FAILED, Verb.DELETE),
    CrawlState.DELETED: (),
}


def legal(state: CrawlState) -> tuple[Verb, ...]:
    """The verbs that mean something in `state`."""
    return _LEGAL[state]


def after(verb: Verb, now: Standing) -> Standing:
    """Where `verb` leads from `now`; IllegalTransition. RESET and DELETE end this crawl id: both lead to DELETED."""
    if verb not in _LEGAL[now.state]:
        raise IllegalTransition(verb, now.state)
    match verb:
        case Verb.START:
            return Standing(CrawlState.SEEDING)
        case Verb.PAUSE:
            return Standing(CrawlState.PAUSED, resumes_as=now.state)
        case Verb.RESUME:
            return Standing(now.resumes_as or CrawlState.SEEDING)
        case Verb.CANCEL:
            return Standing(CrawlState.FINISHED, reason=CANCELLED)
        case Verb.RETRY_FAILED:
            return Standing(CrawlState.RUNNING) if now.state is CrawlState.FINISHED else now
        case Verb.RESET | Verb.DELETE:
            return Standing(CrawlState.DELETED)


def takes_seeds(now: Standing) -> bool:
    """Whether seeds may be added. A crawl that was complete runs again with them; one that was cancelled, or has spent
    its budget, would keep them waiting for a `start` that nobody may have in mind."""
    return now.state is not CrawlState.DELETED and (now.state is not CrawlState.FINISHED or now.reason == COMPLETE)


def after_new_spec(now: Standing) -> Standing:
    """What a new revision makes of a crawl: its seeds are published again, unless it has not begun or is over."""
    match now.state:
        case CrawlState.RUNNING:
            return Standing(CrawlState.SEEDING)
        case CrawlState.PAUSED:
            return Standing(CrawlState.PAUSED, resumes_as=CrawlState.SEEDING)
        case _:
            return now
