"""Every verb in every state is either legal and leads somewhere, or refused with what is legal."""

import pytest

from shared.domain.crawl_state import CANCELLED, IllegalTransition, Standing, Verb, after, after_new_spec, legal
from shared.domain.frontier import CrawlState


@pytest.mark.parametrize("state", CrawlState)
@pytest.mark.parametrize("verb", Verb)
def test_every_verb_is_legal_or_says_what_is(state: CrawlState, verb: Verb) -> None:
    if verb in legal(state):
        assert isinstance(after(verb, Standing(state)).state, CrawlState)
    else:
        with pytest.raises(IllegalTransition) as refused:
            after(verb, Standing(state))
        assert refused.value.legal == legal(state)


@pytest.mark.parametrize("state", [CrawlState.SEEDING, CrawlState.RUNNING])
def test_a_paused_crawl_goes_on_where_it_was(state: CrawlState) -> None:
    """Seeds that were not all published when it was paused are published when it goes on."""
    assert after(Verb.RESUME, after(Verb.PAUSE, Standing(state))).state is state


def test_a_new_spec_of_a_paused_crawl_is_seeded_when_it_goes_on() -> None:
    paused = after_new_spec(after(Verb.PAUSE, Standing(CrawlState.RUNNING)))
    assert paused.state is CrawlState.PAUSED
    assert after(Verb.RESUME, paused).state is CrawlState.SEEDING


def test_a_cancelled_crawl_can_be_taken_up_again_and_a_deleted_one_never() -> None:
    cancelled = after(Verb.CANCEL, Standing(CrawlState.RUNNING))
    assert (cancelled.state, cancelled.reason) == (CrawlState.FINISHED, CANCELLED)
    assert after(Verb.START, cancelled).state is CrawlState.SEEDING
    assert legal(CrawlState.DELETED) == ()


@pytest.mark.parametrize("state", [CrawlState.CREATED, CrawlState.FINISHED])
def test_a_new_spec_starts_nothing_that_does_not_run(state: CrawlState) -> None:
    assert after_new_spec(Standing(state)).state is state
