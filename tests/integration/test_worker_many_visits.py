"""A worker with far more visits than request slots: none is lost at a drain, and slots bound what it sends."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from shared.wire.messages import Begin, Extend
from tests.support.api.scripted_owner import owner_of, spec_for, worker, worker_process
from tests.support.engines.nats_server import BrokerServer
from tests.support.engines.nats_server import server as server
from tests.support.web.fetchers import run
from tests.support.web.synthetic_site import SyntheticSite
from tests.support.web.web_server import Web
from workers import drain, owner_client

Serve = Callable[..., Web]

VISITS = 2_000
REST_MS = 600_000
ACK_WAIT_S = 5.0


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the owner's answers and the last reports more time: a loaded machine may need more than three seconds for
    2,000 answers, and more than ten for 2,000 reports."""
    monkeypatch.setattr(owner_client, "ANSWER_S", 60.0)
    monkeypatch.setattr(drain, "LAST_REPORTS_S", 60.0)


@pytest.mark.long
def test_drained_worker_hands_back_two_thousand_waiting_visits(server: BrokerServer, tmp_path: Path) -> None:
    """None of them may outlast the last reports, after which a worker cancels what is left."""

    async def main() -> None:
        spec = spec_for("http://127.0.0.1:9/", politeness={"obey_robots": False})
        async with owner_of(server, tmp_path, spec) as owner:
            owner.rest_ms, owner.grant_ms = REST_MS, REST_MS
            async with worker(server, tmp_path, max_visits=VISITS, grace_s=0.0) as stop:
                for slot in range(VISITS):
                    await owner.send(f"http://127.0.0.1:9/{slot}", delay_ms=1_000, slot=slot)
                await owner.until(lambda: len(owner.questions) >= VISITS)
                stop.draining.set()
            await owner.caught_up()
            ended = {outcome.lease: outcome for outcome in owner.outcomes if outcome.final}
            assert len(ended) == VISITS
            assert all(len(outcome.not_attempted) == 1 for outcome in ended.values())
            assert await owner.broker.queued_visits(0) == []  # type: ignore[arg-type]
            assert sum(isinstance(question, Begin) for question in owner.questions) == VISITS

    run(main())


@pytest.mark.long
def test_visits_of_a_killed_worker_are_all_attended_to_by_another(server: BrokerServer, tmp_path: Path) -> None:
    async def main() -> None:
        spec = spec_for("http://127.0.0.1:9/", politeness={"obey_robots": False})
        async with owner_of(server, tmp_path, spec, ack_wait_s=ACK_WAIT_S) as owner:
            owner.rest_ms, owner.grant_ms = REST_MS, REST_MS
            settings = {"ORB_MAX_VISITS": str(VISITS), "ORB_ACK_WAIT_S": str(ACK_WAIT_S)}
            with worker_process(server, tmp_path, **settings):
                for slot in range(VISITS):
                    await owner.send(f"http://127.0.0.1:9/{slot}", delay_ms=1_000, slot=slot)
                await owner.until(lambda: len(owner.questions) >= VISITS)
            begun = len(owner.questions)
            async with worker(server, tmp_path, id="w2", max_visits=VISITS, grace_s=0.0, ack_wait_s=ACK_WAIT_S) as stop:
                await owner.until(lambda: len(leases(owner.questions[begun:])) == VISITS)
                stop.draining.set()
            await owner.caught_up()
            assert len({outcome.lease for outcome in owner.outcomes if outcome.final}) == VISITS

    run(main())


def leases(questions: Sequence[Begin | Extend]) -> set[int]:
    """The leases that were begun."""
    return {question.lease for question in questions if isinstance(question, Begin)}


def test_requests_under_way_never_exceed_max_requests(server: BrokerServer, web: Serve, tmp_path: Path) -> None:
    site = SyntheticSite(pages=60, latency_s=(0.05,))
    served = web(site)
    urls = [served.origins[0] + site.path(number) for number in range(60)]

    async def main() -> None:
        spec = spec_for(urls[0], politeness={"obey_robots": False, "delay_s": 0})
        async with (
            owner_of(server, tmp_path, spec) as owner,
            worker(server, tmp_path, max_visits=20, max_requests=3),
        ):
            leases = [await owner.send(*urls[at : at + 3], slot=at) for at in range(0, 60, 3)]
            await asyncio.gather(*(owner.ended(lease) for lease in leases))
            assert sum(len(owner.results(lease)) for lease in leases) == 60

    run(main())
    edges = sorted((at, step) for each in served.log() for at, step in ((each.begun_ns, 1), (each.ended_ns, -1)))
    under_way, highest = 0, 0
    for _, step in edges:
        under_way += step
        highest = max(highest, under_way)
    assert highest == 3
