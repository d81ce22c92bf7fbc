"""What a worker's user may do in NATS: all that a worker needs, and nothing else, whatever the worker sends."""

import asyncio
import os
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from nats.aio.msg import Msg
from structlog.testing import capture_logs

from shared.adapters.nats import EmbeddedServer, NatsBroker, NatsLogin, NatsUser, ServerSettings, StreamSettings
from shared.adapters.nats.client import PlainClient
from shared.adapters.nats.connection import NatsConnection
from shared.adapters.nats.jetstream import demand
from shared.adapters.nats.server import find_executable
from shared.domain.errors import Transient, Unusable
from shared.domain.ids import CrawlId, Partition
from shared.ports.broker import KINDS
from shared.wire import subjects
from tests.support.engines.nats_server import POOL, BrokerServer, persist
from tests.support.engines.ports import free_ports
from tests.support.nats_accounts import BY_PASSWORD, rendered

P = Partition(3)
OTHER = "eu"
WORKERS = (
    NatsUser("worker-1", POOL, "worker-1"),
    NatsUser("a.b", POOL, "a.b"),
    NatsUser("shared", POOL),
    NatsUser("far", OTHER, "far"),
)
SETTINGS = StreamSettings(answer_s=5.0)
PULL = f"$JS.API.CONSUMER.MSG.NEXT.VISITS_{POOL}.visits"

DENIED = (
    "visits.default.3.1.0",
    "visits.eu.3.1.0",
    "reports.3.command",
    "reports.3.other",
    "reports.3",
    "events.crawl.7",
    "items",
    "status.master",
    "status.wanted",
    "status.progress",
    "owner.3.more",
    "_INBOX.master.1",
    "_INBOX.worker-1.1",
    "$JS.API.INFO",
    "$JS.API.STREAM.NAMES",
    "$JS.API.STREAM.INFO.REPORTS",
    "$JS.API.STREAM.CREATE.MINE",
    "$JS.API.STREAM.UPDATE.VISITS_default",
    "$JS.API.STREAM.DELETE.REPORTS",
    "$JS.API.STREAM.PURGE.REPORTS",
    "$JS.API.STREAM.MSG.GET.REPORTS",
    "$JS.API.STREAM.MSG.DELETE.REPORTS",
    "$JS.API.DIRECT.GET.REPORTS",
    "$JS.API.DIRECT.GET.REPORTS.reports.3.outcome",
    "$JS.API.DIRECT.GET.KV_robots",
    "$JS.API.DIRECT.GET.KV_other.$KV.other.x",
    "$JS.API.CONSUMER.CREATE.VISITS_default.mine",
    "$JS.API.CONSUMER.CREATE.REPORTS.mine.reports.3.outcome",
    "$JS.API.CONSUMER.DURABLE.CREATE.VISITS_default.visits",
    "$JS.API.CONSUMER.INFO.VISITS_default.visits",
    "$JS.API.CONSUMER.DELETE.VISITS_default.visits",
    "$JS.API.CONSUMER.MSG.NEXT.VISITS_eu.visits",
    "$JS.API.CONSUMER.MSG.NEXT.VISITS_default.other",
    "$JS.ACK.VISITS_eu.visits.1.1.1.1.0",
    "$KV.other.x",
    "$SYS.REQ.SERVER.PING",
    "anything",
)
UNHEARD = (
    ">",
    "*.>",
    "reports.>",
    "visits.>",
    "items.*",
    "events.>",
    "owner.*",
    "status.worker",
    "status.*",
    "_INBOX.>",
    "_INBOX.*.>",
    "_INBOX.worker-1.>",
    "_INBOX.master.>",
    "_R_.>",
    "$JS.>",
    "$KV.robots.>",
    "$SYS.>",
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerServer]:
    """One broker for the tests of this module, with a user for each of its workers."""
    running = BrokerServer(tmp_path_factory.mktemp("rights") / "broker", workers=WORKERS)
    yield running
    asyncio.run(running.embedded.stop())


@asynccontextmanager
async def connected(server: BrokerServer, user: str, name: str = "") -> AsyncIterator[NatsBroker]:
    """A process that uses the login of `user`; its name is the same, unless it is another one's."""
    login = server.login(user)
    broker = await NatsBroker.connect([server.endpoint.url], login=login, name=name or user, settings=SETTINGS)
    try:
        yield broker
    finally:
        await broker.close()


@asynccontextmanager
async def master(server: BrokerServer) -> AsyncIterator[NatsBroker]:
    """A master, and the streams of both pools, with a shard in each of them."""
    async with connected(server, "master") as broker:
        await broker.declare([POOL, OTHER])
        await broker.events.declare()
        for pool in (POOL, OTHER):
            await broker.publish_shard(pool, P, 7, 0, b"shard")
        yield broker


@asynccontextmanager
async def taken_over(server: BrokerServer, user: str = "a.b") -> AsyncIterator[tuple[PlainClient, list[str]]]:
    """A client of an attacker who has a worker's password, and what the server said to it."""
    said: list[str] = []

    async def hear(error: Exception) -> None:
        said.append(str(error))

    login = server.login(user)
    client = PlainClient()  # whose flush waits for what was sent before it
    await client.connect(server.endpoint.url, user=login.user, password=login.password, error_cb=hear)
    try:
        yield client, said
    finally:
        await client.close()


async def state(broker: NatsBroker) -> dict[str, tuple[int, int, int]]:
    """Of each stream: how many messages it has, how many it ever had, and how many consumers."""
    listed = (await demand(broker._connection, "STREAM.LIST", {"offset": 0}, 5.0))["streams"]
    return {
        stream["config"]["name"]: tuple(stream["state"][key] for key in ("messages", "last_seq", "consumer_count"))
        for stream in listed
    }


def run(story: Callable[[], Any]) -> None:
    asyncio.run(asyncio.wait_for(story(), 60))


def test_worker_does_all_that_it_needs(server: BrokerServer) -> None:
    async def story() -> None:
        async with master(server) as owner, connected(server, "a.b") as worker:
            (visit,) = await worker.pull_visits(POOL, 5, 5.0)
            await visit.working()
            await visit.nak(0.0)
            (visit,) = await worker.pull_visits(POOL, 5, 5.0)
            assert visit.delivery == 2
            await visit.ack()
            assert not await worker.pull_visits(POOL, 5, 0.2)
            for kind in KINDS:
                sequence = await worker.publish_report(P, kind, b"r", f"id-{kind}")
                assert await worker.publish_report(P, kind, b"r", f"id-{kind}") == sequence
            assert await worker.publish_items(CrawlId(1), b"i", "id") > 0
            await worker.put_robots("https://a.test:443", b"robots")
            assert await worker.get_robots("https://a.test:443") == b"robots"
            assert await worker.get_robots("https://b.test:443") is None
            with pytest.raises(Transient, match="no subscriber"):
                await worker.ask(P, b"begin", 5.0)

            async def grant(question: bytes) -> bytes:
                return b"go " + question

            async with owner.answer(P, grant):
                assert await worker.ask(P, b"begin", 5.0) == b"go begin"
            async with (
                connected(server, "master", "master-2") as second,
                owner.listen(subjects.WORKER_STATUS) as one,
                second.listen(subjects.WORKER_STATUS) as two,
            ):
                await worker.tell(subjects.WORKER_STATUS, b"status")
                assert [await anext(one), await anext(two)] == [b"status", b"status"], "every master hears it"
            async with worker.listen(subjects.STATUS_WANTED) as wanted:
                await owner.tell(subjects.STATUS_WANTED, b"wanted")
                assert await anext(wanted) == b"wanted"

    with capture_logs() as logged:
        run(story)
    assert [line for line in logged if line["event"] == "broker_permission.denied"] == []


def test_worker_publishes_nothing_else(server: BrokerServer) -> None:
    async def story() -> None:
        async with master(server) as owner, taken_over(server) as (client, said):
            before = await state(owner)
            for subject in DENIED:
                await client.publish(subject, b"")
                await client.flush()
                assert said[-1:] == [f'nats: permissions violation for publish to "{subject.lower()}"'], subject
            assert len(said) == len(DENIED)
            assert await state(owner) == before

    run(story)


def test_worker_subscribes_to_nothing_else(server: BrokerServer) -> None:
    async def story() -> None:
        async with taken_over(server) as (client, said):
            for subject in UNHEARD:
                await client.subscribe(subject)
                await client.flush()
                assert said[-1:] == [f'nats: permissions violation for subscription to "{subject.lower()}"'], subject

    run(story)


def test_worker_reaches_nothing_by_the_subject_of_a_reply(server: BrokerServer) -> None:
    """JetStream answers to any subject that a request names. A worker chooses it, and the value of a robots record.

    With permissions alone, an empty record sent to `$JS.API.STREAM.DELETE.ITEMS` deletes that stream.
    """
    targets = (
        "visits.eu.3.8.0", "reports.3.command", "events.crawl.7", "status.master", "_INBOX.master.1",
        "$JS.API.STREAM.DELETE.ITEMS", "$JS.API.STREAM.PURGE.VISITS_eu", "$JS.API.CONSUMER.DELETE.VISITS_eu.visits",
        "$JS.API.CONSUMER.MSG.NEXT.VISITS_eu.visits",
    )  # fmt: skip

    async def story() -> None:
        async with master(server) as owner, taken_over(server) as (client, said):
            received: list[str] = []

            async def receive(message: Msg) -> None:
                received.append(message.subject)

            for subject in ("status.master", "_INBOX.master.1", "visits.eu.>", "reports.*.command", "events.>"):
                await owner._connection.subscribe(subject, receive)
            await owner._connection.confirm()

            async def answer(question: bytes) -> bytes:
                return b""

            before = await state(owner)
            async with owner.answer(P, answer):
                for target in targets:
                    for key, value in (("full", b"shard"), ("empty", b"")):
                        await client.publish(f"$KV.robots.{key}", value)
                        await client.publish(f"$JS.API.DIRECT.GET.KV_robots.$KV.robots.{key}", b"", reply=target)
                    await client.publish(PULL, b'{"batch":1,"no_wait":true}', reply=target)
                    await client.publish("$JS.ACK.VISITS_default.visits.1.1.1.1.0", b"+ACK", reply=target)
                    await client.publish("owner.3", b"", reply=target)
                    await client.publish("status.worker", b"", reply=target)
                    await client.publish("reports.3.outcome", b"", reply=target)
                    await client.publish("items.1", b"", reply=target)
                    await client.flush()
                await asyncio.sleep(0.5)
            assert received == []
            after = await state(owner)
            # What it may do has its effect, so the requests arrived.
            assert after["REPORTS"][1] == before["REPORTS"][1] + len(targets)
            assert {name: after.get(name) for name in ("VISITS_eu", "EVENTS")} == {
                name: before[name] for name in ("VISITS_eu", "EVENTS")
            }
            assert after["ITEMS"][1] == before["ITEMS"][1] + len(targets)
            assert said == []

    run(story)


def test_workers_of_a_pool_do_not_read_each_others_answers(server: BrokerServer) -> None:
    async def story() -> None:
        async with master(server), connected(server, "worker-1") as victim, taken_over(server) as (client, said):
            received: list[Msg] = []

            async def receive(message: Msg) -> None:
                received.append(message)

            for pattern in ("_INBOX.worker-1.>", f"{victim._connection._prefix}*", "_INBOX.a~2eb.>"):
                await client.subscribe(pattern, cb=receive)
            await client.flush()
            assert len(said) == 2, "only its own are permitted"
            await victim.put_robots("x", b"1")
            await client.flush()
            assert received == []

    run(story)


def test_workers_that_share_a_user_are_named_as_they_like(server: BrokerServer) -> None:
    async def story() -> None:
        for name in ("one", "two.three"):
            async with connected(server, "shared", name) as worker:
                await worker.put_robots("x", b"1")

    run(story)


def test_login_of_another_worker_is_unusable_in_one_sentence(server: BrokerServer) -> None:
    async def story() -> None:
        async with connected(server, "worker-1", "worker-2") as worker:
            with pytest.raises(Unusable, match="permits no answers to worker-2: is nats_user that of another process"):
                await worker.get_robots("x")
            with pytest.raises(Unusable, match="nats_user"):
                await worker.tell(subjects.WORKER_STATUS, b"")

    run(story)


@pytest.mark.parametrize("login", [NatsLogin("worker-1", "wrong"), NatsLogin("none", "x"), NatsLogin(token="x"), None])
def test_wrong_login_is_unusable_and_names_the_settings(server: BrokerServer, login: NatsLogin | None) -> None:
    async def story() -> None:
        long = StreamSettings(connect_s=3600)
        with pytest.raises(Unusable, match="check nats_user and nats_password, or nats_token"):
            await NatsBroker.connect([server.endpoint.url], login=login, name="worker-1", settings=long)

    run(story)


def test_denied_request_fails_at_once_and_is_logged_once_a_minute(server: BrokerServer) -> None:
    """A worker that is configured for another pool than its user's: what it pulls is denied."""

    async def story() -> None:
        async with connected(server, "worker-1") as worker:
            begun = time.monotonic()
            for _ in range(20):
                with pytest.raises(
                    Transient, match=r"does not permit this process to publish on visits\.eu\.3\.1\.0"
                ) as caught:
                    await worker.publish_shard(OTHER, P, 1, 0, b"x")
                assert caught.value.retry_in == 5.0
            assert time.monotonic() - begun < 5.0
            assert not await worker.pull_visits(OTHER, 1, 0.1)
            assert not worker.stores_nothing()
            # The connection is whole.
            await worker.put_robots("x", b"1")

    with capture_logs() as logged:
        run(story)
    (line,) = [line for line in logged if line["event"] == "broker_permission.denied"]
    assert line == {
        "event": "broker_permission.denied", "log_level": "error", "operation": "publish",
        "subject": "visits.eu.3.1.0", "denials": 1,
    }  # fmt: skip


@contextmanager
def plain_server(folder: Path, more: str, **environment: str) -> Iterator[str]:
    """A nats-server as operators run it, with `more` in its configuration. Its URL."""
    port, config = free_ports(1)[0], folder / "plain.conf"
    config.write_text(f'host: 127.0.0.1, port: {port}, jetstream: {{store_dir: "{folder}/store"}}\n{more}')
    process = subprocess.Popen(
        [find_executable(), "--config", config], env={**os.environ, **environment}, stderr=subprocess.DEVNULL
    )
    try:
        yield f"nats://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait(30)


async def patient(url: str, login: NatsLogin, name: str) -> NatsBroker:
    """A connection to a server that is about to start."""
    return await persist(lambda: NatsBroker.connect([url], login=login, name=name, settings=SETTINGS))


def test_accounts_in_the_documentation_are_enough_for_masters_and_workers(tmp_path: Path) -> None:
    async def story(url: str) -> None:
        master = await patient(url, NatsLogin("master", "m"), "master-1")
        await master.declare([POOL])
        await master.publish_shard(POOL, P, 1, 0, b"s")
        worker = await patient(url, NatsLogin("worker", "w"), "any.worker")
        (visit,) = await worker.pull_visits(POOL, 1, 5.0)
        await visit.ack()
        await worker.publish_report(P, "outcome", b"r", "a")
        with pytest.raises(Transient, match="does not permit"):
            await worker.reports_state()
        await worker.close()
        await master.close()

    with plain_server(tmp_path, rendered(BY_PASSWORD), MASTER_PASSWORD="m", WORKER_PASSWORD="w") as url:
        asyncio.run(asyncio.wait_for(story(url), 60))


def test_token_alone_works_and_its_streams_are_adopted_by_the_masters(tmp_path: Path) -> None:
    """So `orb up` and `orb crawl` go on in a folder from before there were accounts."""

    async def fill(url: str) -> None:
        broker = await patient(url, NatsLogin(token="t0ken"), "w1")
        await broker.declare([POOL])
        await broker.publish_report(P, "outcome", b"kept", "a")
        await broker.publish_shard(POOL, P, 1, 0, b"s")
        (visit,) = await broker.pull_visits(POOL, 1, 5.0)
        await visit.ack()
        await broker.publish_shard(POOL, P, 2, 0, b"t")
        await broker.close()

    async def resume() -> None:
        embedded = EmbeddedServer(tmp_path, ServerSettings(workers=[NatsUser("w1", POOL, "w1")]))
        endpoint = await embedded.start()
        try:
            broker = await NatsBroker.connect([endpoint.url], login=endpoint.master, name="m", settings=SETTINGS)
            await broker.declare([POOL])
            reader = await broker.read_reports(P, "outcome", 0)
            assert [report.data for report in await reader.read(10, 5.0)] == [b"kept"]
            await reader.close()
            worker = await NatsBroker.connect([endpoint.url], login=endpoint.logins["w1"], name="w1", settings=SETTINGS)
            assert [visit.data for visit in await worker.pull_visits(POOL, 5, 5.0)] == [b"t"]
            await worker.close()
            await broker.close()
        finally:
            await embedded.stop()

    with plain_server(tmp_path, "authorization: {token: t0ken}") as url:
        asyncio.run(fill(url))
    asyncio.run(asyncio.wait_for(resume(), 60))


def test_connection_waits_for_the_server_without_a_right_to_publish(server: BrokerServer) -> None:
    """A worker may publish to no inbox, not even its own, or it could answer for a stream or an owner."""

    async def story() -> None:
        login = server.login("a.b")
        connection = await NatsConnection.open([server.endpoint.url], login=login, name="a.b", settings=SETTINGS)
        await connection.confirm()
        connection._settings = StreamSettings(answer_s=0.2)
        with server.stopped(), pytest.raises(Transient, match="no answer to a ping"):
            await connection.confirm()
        await connection.confirm()
        await connection.close()

    run(story)
