"""Every verb in every state is either legal and leads somewhere, or refused with what is legal."""

import pytest

from shared.domain.crawl.state import (
    CANCELLED,
    COMPLETE,
    REFRESHED,
    CrawlStatus,
    IllegalTransition,
    NoRecrawl,
    Verb,
    allowed_verbs,
    refresh_after,
    status_after,
    status_after_new_spec,
    takes_seeds,
)
from shared.domain.frontier.states import CrawlState


@pytest.mark.parametrize("state", CrawlState)
@pytest.mark.parametrize("verb", Verb)
def test_every_verb_is_legal_or_says_what_is(state: CrawlState, verb: Verb) -> None:
    if verb in allowed_verbs(state):
        assert isinstance(status_after(verb, CrawlStatus(state)).state, CrawlState)
    else:
        with pytest.raises(IllegalTransition) as refused:
            status_after(verb, CrawlStatus(state))
        assert refused.value.legal == allowed_verbs(state)


@pytest.mark.parametrize("state", [CrawlState.SEEDING, CrawlState.RUNNING])
def test_a_paused_crawl_goes_on_where_it_was(state: CrawlState) -> None:
    """Seeds that were not all published when it was paused are published when it goes on."""
    assert status_after(Verb.RESUME, status_after(Verb.PAUSE, CrawlStatus(state))).state is state


def test_a_new_spec_of_a_paused_crawl_is_seeded_when_it_goes_on() -> None:
    paused = status_after_new_spec(status_after(Verb.PAUSE, CrawlStatus(CrawlState.RUNNING)))
    assert paused.state is CrawlState.PAUSED
    assert status_after(Verb.RESUME, paused).state is CrawlState.SEEDING


def test_new_spec_of_a_finished_crawl_is_seeded_when_it_runs_again() -> None:
    finished = CrawlStatus(CrawlState.FINISHED, reason=COMPLETE)
    assert status_after(Verb.RETRY_FAILED, finished).state is CrawlState.RUNNING
    changed = status_after_new_spec(finished)
    assert (changed.state, changed.reason) == (CrawlState.FINISHED, COMPLETE)
    assert status_after(Verb.RETRY_FAILED, changed) == CrawlStatus(CrawlState.SEEDING)


@pytest.mark.parametrize(
    ("before", "then"),
    [
        (CrawlStatus(CrawlState.CREATED), CrawlState.SEEDING),
        (CrawlStatus(CrawlState.SEEDING), CrawlState.SEEDING),
        (CrawlStatus(CrawlState.PAUSED, resumes_as=CrawlState.SEEDING), CrawlState.SEEDING),
        (CrawlStatus(CrawlState.PAUSED, resumes_as=CrawlState.RUNNING), CrawlState.RUNNING),
        (CrawlStatus(CrawlState.RUNNING), CrawlState.RUNNING),
    ],
)
def test_crawl_cancelled_before_it_was_seeded_is_seeded_by_a_retry(before: CrawlStatus, then: CrawlState) -> None:
    assert status_after(Verb.RETRY_FAILED, status_after(Verb.CANCEL, before)) == CrawlStatus(then)


def test_a_cancelled_crawl_can_be_taken_up_again_and_a_deleted_one_never() -> None:
    cancelled = status_after(Verb.CANCEL, CrawlStatus(CrawlState.RUNNING))
    assert (cancelled.state, cancelled.reason) == (CrawlState.FINISHED, CANCELLED)
    assert status_after(Verb.START, cancelled).state is CrawlState.SEEDING
    assert allowed_verbs(CrawlState.DELETED) == ()


@pytest.mark.parametrize("state", [CrawlState.CREATED, CrawlState.FINISHED])
def test_a_new_spec_starts_nothing_that_does_not_run(state: CrawlState) -> None:
    assert status_after_new_spec(CrawlStatus(state)).state is state


@pytest.mark.parametrize("state", CrawlState)
def test_refresh_is_legal_wherever_start_is_and_leads_to_the_same(state: CrawlState) -> None:
    legal = allowed_verbs(state)
    assert (Verb.REFRESH in legal) == (Verb.START in legal)
    if Verb.REFRESH in legal:
        assert status_after(Verb.REFRESH, CrawlStatus(state)) == status_after(Verb.START, CrawlStatus(state))
    assert allowed_verbs(state, recrawls=False) == tuple(verb for verb in legal if verb is not Verb.REFRESH)


def test_refresh_of_a_crawl_without_recrawl_has_a_remedy_and_the_legal_verbs() -> None:
    refused = NoRecrawl(CrawlState.FINISHED)
    assert str(refused) == "the crawl fetches each page once: set `recrawl` in its spec before a refresh"
    assert refused.legal == (Verb.START, Verb.RESET, Verb.RETRY_FAILED, Verb.DELETE)


@pytest.mark.parametrize(
    ("verb", "after"),
    [
        (Verb.START, 0),
        (Verb.REFRESH, 20),
        (Verb.PAUSE, 10),
        (Verb.RESUME, 10),
        (Verb.CANCEL, 10),
        (Verb.RESET, 0),
        (Verb.RETRY_FAILED, 10),
        (Verb.DELETE, 0),
    ],
)
def test_verb_begins_keeps_or_ends_a_refresh(verb: Verb, after: int) -> None:
    assert refresh_after(verb, 10, 20) == after
    assert refresh_after(verb, 0, 20) == (20 if verb is Verb.REFRESH else 0)


@pytest.mark.parametrize(
    ("reason", "takes"), [(COMPLETE, True), (REFRESHED, True), (CANCELLED, False), ("max_pages", False)]
)
def test_finished_crawl_takes_seeds_unless_it_was_ended_early(reason: str, takes: bool) -> None:
    assert takes_seeds(CrawlStatus(CrawlState.FINISHED, reason=reason)) == takes
    assert not takes_seeds(CrawlStatus(CrawlState.DELETED, reason=reason))
