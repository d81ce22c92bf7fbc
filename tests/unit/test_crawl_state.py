"""Every verb in every state is either legal and leads somewhere, or refused with what is legal."""

import pytest

from shared.domain.crawl.state import (
    CANCELLED,
    CrawlStatus,
    IllegalTransition,
    Verb,
    allowed_verbs,
    status_after,
    status_after_new_spec,
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


def test_a_cancelled_crawl_can_be_taken_up_again_and_a_deleted_one_never() -> None:
    cancelled = status_after(Verb.CANCEL, CrawlStatus(CrawlState.RUNNING))
    assert (cancelled.state, cancelled.reason) == (CrawlState.FINISHED, CANCELLED)
    assert status_after(Verb.START, cancelled).state is CrawlState.SEEDING
    assert allowed_verbs(CrawlState.DELETED) == ()


@pytest.mark.parametrize("state", [CrawlState.CREATED, CrawlState.FINISHED])
def test_a_new_spec_starts_nothing_that_does_not_run(state: CrawlState) -> None:
    assert status_after_new_spec(CrawlStatus(state)).state is state
