"""The leader's exclusions: published to the members first. Then come the commands, of which one may be refused."""

import asyncio
from pathlib import Path
from typing import cast

from structlog.testing import capture_logs

from api.leader.exclusion_publisher import ExclusionPublisher
from shared.adapters.sql.catalog.desired import SqlDesired
from shared.domain.errors import Permanent
from shared.domain.ids import Partition
from shared.domain.ops.access import Role
from shared.domain.ops.exclusions import ExclusionTerms
from shared.domain.reads.declared import Actor
from shared.ports.broker import Broker
from shared.ports.coordinator import Snapshot, View
from shared.runtime.exclusions import ExclusionsFollower
from shared.wire.keys import EXCLUSIONS, Keys
from tests.support.api.rest_api import PARTITIONS, api
from tests.support.engines.local_coordinator import LocalCoordinator
from tests.support.manual_clock import ManualClock

KEYS = Keys("test")


class OneRefused:
    """A broker that refuses one command for good."""

    def __init__(self, refused: str) -> None:
        self.refused = refused
        self.published: list[str] = []

    async def publish_command(self, partition: Partition, data: bytes, message_id: str) -> None:
        if message_id.startswith(self.refused):
            raise Permanent("no such stream")
        self.published.append(message_id.rpartition(".")[0])


def test_refused_command_of_an_exclusion_delays_no_other(tmp_path: Path) -> None:
    async def story() -> None:
        clock = ManualClock()
        coordinator = LocalCoordinator(clock)
        async with (
            api(tmp_path / "orb.db") as opened,
            opened.as_role(Role.OPERATOR) as client,
            coordinator.session(15.0) as session,
        ):
            made = []
            for target in ("a.test", "b.test"):
                body = {"target": target, "reason": "asked by mail", "requested_by": "webmaster@example.org"}
                made.append((await client.post("/v1/exclusions", json=body)).json()["command"])
            broker = OneRefused(made[0])
            desired = SqlDesired(opened.threads)
            leadership = await session.campaign(KEYS.leader, b"")
            publisher = ExclusionPublisher(
                coordinator, leadership, KEYS, desired, cast(Broker, broker), clock, PARTITIONS
            )
            await publisher.commands.attempt()
            assert broker.published == [], "the members do not have them yet"
            await publisher.once()
            assert await coordinator.get(KEYS.setting(EXCLUSIONS)) is not None
            await publisher.commands.attempt()
            assert broker.published == made[1:]
            waiting = (await desired.exclusions_in_force(0)).to_command
            assert [each.command_id for each in waiting] == made[:1]

            broker.refused = "nothing"
            await publisher.commands.attempt()
            assert broker.published == [made[1], made[0]]
            assert (await desired.exclusions_in_force(0)).to_command == []
            await leadership.resign()
            await publisher.commands.attempt()
            assert broker.published == [made[1], made[0]]

    asyncio.run(story())


def test_exclusion_that_cannot_be_read_disables_no_other(tmp_path: Path) -> None:
    """The row of another version is published, logged by leader and members, and delays no other exclusion."""

    async def story() -> None:
        clock = ManualClock()
        coordinator = LocalCoordinator(clock)
        async with api(tmp_path / "orb.db") as opened, coordinator.session(15.0) as session:
            desired, by = SqlDesired(opened.threads), Actor("1", "later", "1")
            made = [
                await desired.add_exclusion(target, ExclusionTerms("x"), 1, actor=by, now_ms=0)
                for target in ("a.test", "regex:.*", "b.test")
            ]
            broker = OneRefused("nothing")
            leadership = await session.campaign(KEYS.leader, b"")
            publisher = ExclusionPublisher(
                coordinator, leadership, KEYS, desired, cast(Broker, broker), clock, PARTITIONS
            )
            await publisher.once()
            with capture_logs() as logs:
                await publisher.commands.attempt()
            assert broker.published == [made[0].command_id, made[2].command_id]
            (refused,) = [each for each in logs if each["event"] == "commands.refused"]
            assert refused["command"] == made[1].command_id
            assert f"delete exclusion {made[1].exclusion_id}" in refused["error"]

            entry = await coordinator.get(KEYS.setting(EXCLUSIONS))
            assert entry is not None
            follower = ExclusionsFollower(cast(View, None), KEYS)
            with capture_logs() as logs:
                follower.follow(Snapshot({entry.key: entry}, 1, 1))
            assert [follower.current.of_host(host) for host in ("a.test", "b.test")] == ["a.test", "b.test"]
            assert [(each["event"], each.get("target")) for each in logs] == [
                ("exclusions.skipped", "regex:.*"),
                ("exclusions.applied", None),
            ]

    asyncio.run(story())
