"""A broker that answers and stores nothing is told by its gauge, until it stores again."""

import asyncio
from pathlib import Path

import pytest

from shared.adapters.nats import EmbeddedServer, NatsBroker, StreamSettings
from shared.adapters.nats import storage as storing
from shared.domain.errors import Transient
from shared.domain.ids import Partition
from tests.support.engines.nats_server import persist


@pytest.mark.long
def test_a_broker_that_answers_and_stores_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody else takes the publishes and answers none, as nats-server does with a file that a full disk broke."""
    monkeypatch.setattr(storing, "SILENT_S", 1.0)

    async def run() -> None:
        server = EmbeddedServer(tmp_path)
        place = await server.start()
        settings = StreamSettings(answer_s=2.0)
        quick = await NatsBroker.connect([place.url], login=place.master, name="quick", settings=settings)
        patient = await NatsBroker.connect([place.url], login=place.master, name="patient", settings=StreamSettings())
        async with quick.listen("reports.>"):
            assert await quick.storage() is None
            assert not quick.stores_nothing()
            for number in range(2):
                with pytest.raises(Transient, match="no answer"):
                    await quick.publish_report(Partition(1), "outcome", b"x", f"m{number}")
            level = await quick.storage()
            assert level is not None
            assert level.refused
            assert quick.stores_nothing(), "workers tell it by a metric"
            await patient.declare([])
            await persist(lambda: quick.publish_report(Partition(1), "outcome", b"x", "m"))
            level = await quick.storage()
            assert level is not None
            assert not level.refused
            assert not quick.stores_nothing()
        await quick.close()
        await patient.close()
        await server.stop()

    asyncio.run(asyncio.wait_for(run(), 60))
