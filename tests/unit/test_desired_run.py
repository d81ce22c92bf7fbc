"""Whether a declared crawl runs: the table of states, declarations and verbs, which docs/crawls.md shows."""

import re
from pathlib import Path
from typing import Final

import pytest

from shared.domain.crawl.state import (
    CANCELLED,
    COMPLETE,
    CrawlStatus,
    DesiredRun,
    IllegalTransition,
    Verb,
    allowed_verbs,
    drifted,
    initial_state,
    status_after,
    status_as_desired,
)
from shared.domain.frontier.states import CrawlState

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "crawls.md"
STATUSES: Final = {
    "created": CrawlStatus(CrawlState.CREATED),
    "seeding": CrawlStatus(CrawlState.SEEDING),
    "running": CrawlStatus(CrawlState.RUNNING),
    "paused": CrawlStatus(CrawlState.PAUSED, resumes_as=CrawlState.RUNNING),
    "finished": CrawlStatus(CrawlState.FINISHED, reason=COMPLETE),
    "finished (cancelled)": CrawlStatus(CrawlState.FINISHED, reason=CANCELLED),
}
VERBS: Final = (Verb.START, Verb.REFRESH, Verb.PAUSE, Verb.RESUME, Verb.CANCEL, Verb.RESET, Verb.RETRY_FAILED)
DECLARED: Final = (None, DesiredRun.RUNNING, DesiredRun.PAUSED)
HEAD: Final = f"| state | `desired` | PUT | {' | '.join(f'`{verb}`' for verb in VERBS)} |"


def cell(desired: DesiredRun | None, after: CrawlStatus) -> str:
    return f"{after.state}{' *' if drifted(desired, after) else ''}"


def after_verb(desired: DesiredRun | None, now: CrawlStatus, verb: Verb) -> str:
    if verb not in allowed_verbs(now.state):
        return "409"
    if verb is Verb.RESET:
        return cell(desired, CrawlStatus(initial_state(desired, start=True)))
    return cell(desired, status_after(verb, now))


def table() -> list[str]:
    """Return the rows of the table."""
    return [
        f"| {name}{' *' if drifted(desired, now) else ''} | {f'`{desired}`' if desired else 'unset'} |"
        f" {cell(desired, status_as_desired(desired, now))} |"
        f" {' | '.join(after_verb(desired, now, verb) for verb in VERBS)} |"
        for name, now in STATUSES.items()
        for desired in DECLARED
    ]


def test_table_in_the_docs_is_what_the_functions_decide() -> None:
    text = PAGE.read_text("utf-8")
    rows = re.findall(rf"^{re.escape(HEAD)}\n\|[-|]+\|\n((?:\|.*\|\n)+)", text, re.MULTILINE)
    assert [part.rstrip("\n").split("\n") for part in rows] == [table()], "\n".join(table())


@pytest.mark.parametrize("desired", DECLARED)
@pytest.mark.parametrize("name", STATUSES)
def test_put_ends_a_drift_by_a_legal_verb_and_changes_nothing_else(name: str, desired: DesiredRun | None) -> None:
    now = STATUSES[name]
    after = status_as_desired(desired, now)
    assert not drifted(desired, after)
    assert status_as_desired(desired, after) == after
    assert (after == now) == (not drifted(desired, now))
    assert after == now or any(status_after(verb, now) == after for verb in VERBS if verb in allowed_verbs(now.state))


def test_crawl_that_ended_by_itself_has_not_drifted() -> None:
    for reason in (COMPLETE, "refreshed", "max_pages", "max_bytes", "max_seconds"):
        for desired in DesiredRun:
            assert not drifted(desired, CrawlStatus(CrawlState.FINISHED, reason=reason))


def test_pause_of_a_crawl_that_was_seeding_resumes_as_seeding() -> None:
    paused = status_as_desired(DesiredRun.PAUSED, CrawlStatus(CrawlState.SEEDING))
    assert paused == CrawlStatus(CrawlState.PAUSED, resumes_as=CrawlState.SEEDING)
    assert status_as_desired(DesiredRun.RUNNING, paused) == CrawlStatus(CrawlState.SEEDING)


@pytest.mark.parametrize(("desired", "start", "state"), [
    (None, True, "seeding"), (None, False, "created"), (DesiredRun.RUNNING, False, "seeding"),
    (DesiredRun.PAUSED, True, "created"),
])  # fmt: skip
def test_declaration_decides_before_start(desired: DesiredRun | None, start: bool, state: str) -> None:
    assert initial_state(desired, start=start) == state


def test_deleted_crawl_has_not_drifted_and_allows_no_verb() -> None:
    gone = CrawlStatus(CrawlState.DELETED)
    for desired in DECLARED:
        assert status_as_desired(desired, gone) == gone
    with pytest.raises(IllegalTransition):
        status_after(Verb.START, gone)
