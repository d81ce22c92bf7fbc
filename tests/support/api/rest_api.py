"""The REST API over a real database, asked in process, as the holders of keys of every role."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from fastapi import FastAPI
from starlette.types import ASGIApp

from api.events.publisher import EventPublisher
from api.http.authentication import Keyring, first_key
from api.http.deps import Services
from api.http.forwarding import leaders_client
from api.http.limits import BODY_BYTES
from api.http.sse import StreamLimit
from api.members.control_plane import ControlPlane, Members
from api.security.key_uses import KeyUses
from api.security.limits import WRONG_KEYS, WrongKeys
from api.server.app import application
from shared.adapters.local.clock import SystemClock
from shared.adapters.nats import NatsBroker
from shared.adapters.sql.catalog.catalog import SqlCatalog
from shared.adapters.sql.catalog.desired import SqlDesired
from shared.adapters.sql.catalog.overview import SqlOverview
from shared.adapters.sql.catalog.schedules import SqlSchedules
from shared.adapters.sql.engine.migrate import upgrade_sqlite
from shared.adapters.sql.engine.sqlite import SqliteThreads
from shared.domain.errors import Transient
from shared.domain.frontier.lag import Waiting
from shared.domain.frontier.states import Position
from shared.domain.ids import Partition, Term
from shared.domain.ops.access import ApiKey, Role, digest_of, new_key
from shared.domain.ops.config import MasterTuning
from shared.domain.ops.identities import Peer
from shared.domain.ops.watermarks import Pressure
from shared.domain.reads.declared import Actor
from shared.ports.archive import PageArchive
from shared.ports.broker import Broker, Delivered
from shared.ports.catalog import Exists
from shared.ports.events import EventReader, Events, EventsState
from shared.wire.keys import MemberRecord
from tests.support.single_master import SingleMaster

PARTITIONS = 4
SPEC = {"seeds": ["https://example.org/"], "scope": {"max_depth": 3}}
SOMEONE = Actor("0" * 16, "test", "r")


@cache
def openapi_document() -> dict[str, Any]:
    """Return the OpenAPI document of a master. Tests share it, since making it takes a second: do not change it."""
    return application().openapi()


class Follower:
    """A control plane that does not lead, and knows the leader, if any."""

    def __init__(self, leader: str | None) -> None:
        self._leader = leader

    def is_leader(self) -> bool:
        return False

    def leader_address(self) -> str | None:
        return self._leader

    def term(self) -> Term | None:
        return None

    def members(self) -> Members:
        return Members({}, {})

    def assignments(self) -> Mapping[Partition, str]:
        return {}

    def wake(self) -> None:
        raise AssertionError("a follower wrote")


class AwayEvents:
    """The events and the backlog of a broker that does not answer."""

    async def declare(self) -> None:
        raise Transient("away")

    async def publish(self, subject: str, data: bytes, message_id: str) -> int:
        raise Transient("away")

    async def state(self) -> EventsState:
        raise Transient("away")

    async def last(self, subject: str) -> Delivered | None:
        raise Transient("away")

    async def newest(self, pattern: str) -> Sequence[Delivered]:
        raise Transient("away")

    async def read(self, subjects: Sequence[str], after: int) -> EventReader:
        raise Transient("away")

    async def unapplied(self, positions: Mapping[Partition, Position]) -> Waiting:
        raise Transient("away")


@dataclass
class Api:
    """An application and a client of it for each role."""

    app: FastAPI
    catalog: SqlCatalog
    threads: SqliteThreads
    keys: dict[Role, str]
    anonymous: httpx.AsyncClient
    missing: list[str] = field(default_factory=list)
    short: list[str] = field(default_factory=list)

    def as_role(self, role: Role) -> httpx.AsyncClient:
        return client_of(self.app, self.keys[role])

    async def created(self, name: str, **more: Any) -> httpx.Response:
        """A crawl, made by an operator."""
        async with self.as_role(Role.OPERATOR) as client:
            response = await client.post("/v1/crawls", json={"name": name, "spec": SPEC, **more})
        assert response.status_code == 201, response.text
        return response


def client_of(app: ASGIApp, key: str | None = None) -> httpx.AsyncClient:
    """A client in this process; exceptions of the application are answers to it, as over a socket."""
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://master", headers=headers)


def of_peer(app: ASGIApp, peer: Peer) -> ASGIApp:
    """The application as a client at this address and with this certificate reaches it."""

    async def reached(scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        scope["client"] = (peer.address, 1)
        if peer.certificate is not None:
            scope.setdefault("state", {})["certificate"] = peer.certificate
        await app(scope, receive, send)

    return reached


@asynccontextmanager
async def api(
    path: Path,
    broker: Broker | None = None,
    plane: ControlPlane | None = None,
    leader: ASGIApp | None = None,
    answer_s: float = 10.0,
    archive: PageArchive | None = None,
    streams: StreamLimit | None = None,
    verify: ssl.SSLContext | bool = True,
    tuning: Callable[[], MasterTuning] = MasterTuning,
    body_bytes: int = BODY_BYTES,
    wrong_keys: int = WRONG_KEYS,
) -> AsyncIterator[Api]:
    """An API over the database `path`. Without a broker nothing may be asked that needs one. `verify`: how it makes
    sure of a leader that it reaches over TLS."""
    threads = SqliteThreads(path)
    await threads.migrate(upgrade_sqlite)
    catalog = SqlCatalog(threads)
    clock = SystemClock()
    missing: list[str] = []
    short: list[str] = []

    async def ready() -> list[str]:
        return missing

    away = AwayEvents()
    events: Events = broker.events if isinstance(broker, NatsBroker) else away
    member = MemberRecord(id="m1", version="0", started_at_ms=clock.unix_ms(), address="127.0.0.1:1")
    services = Services(
        catalog=catalog,
        broker=cast(Broker, broker),
        plane=SingleMaster(member, Term(1), PARTITIONS) if plane is None else plane,
        clock=clock,
        keyring=Keyring(catalog),
        uses=KeyUses(catalog),
        partitions=PARTITIONS,
        member="m1",
        ready=ready,
        desired=SqlDesired(threads),
        schedules=SqlSchedules(threads),
        events=events,
        overview=SqlOverview(threads),
        backlog=broker if isinstance(broker, NatsBroker) else away,
        telling=EventPublisher(events, clock, "m1"),
        streams=streams or StreamLimit(),
        archive=archive,
        tuning=tuning,
        wrong_keys=WrongKeys(wrong_keys),
        body_bytes=body_bytes,
        pressure=lambda: [Pressure("database", detail) for detail in short],
    )
    transport = None if leader is None else httpx.ASGITransport(leader)
    try:
        keys = await issued(catalog)
        async with leaders_client(verify, transport) as client:
            app = application(services, client, answer_s=answer_s)
            async with client_of(app) as anonymous:
                yield Api(app, catalog, threads, keys, anonymous, missing, short)
    finally:
        await threads.close()


async def issued(catalog: SqlCatalog) -> dict[Role, str]:
    """A key of every role."""
    keys = {}
    await catalog.add_first_key(first_key(0)[0])
    for role in Role:
        key_id, keys[role] = new_key()
        made = ApiKey(key_id, role, role, digest_of(keys[role]), 0, "test")
        try:
            await catalog.add_key(made, actor=SOMEONE)
        except Exists:  # another master on this database has keys of its own
            await catalog.add_key(replace(made, name=f"{role}-{key_id}"), actor=SOMEONE)
    return keys


Story = Callable[[Api], Awaitable[None]]


@pytest.fixture
def told(tmp_path: Path) -> Callable[[Story], None]:
    """Runs a story against an API of its own."""

    def tell(story: Story) -> None:
        async def run() -> None:
            async with api(tmp_path / "crawl.db") as served:
                await story(served)

        asyncio.run(run())

    return tell


def problem(response: httpx.Response, status: int, kind: str) -> dict[str, Any]:
    """The body of an error, which must be of this status and kind."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    body: dict[str, Any] = response.json()
    assert body["type"] == f"urn:orbweaver:problem:{kind}"
    assert body["status"] == status
    assert body["request_id"] == response.headers["x-request-id"]
    return body
