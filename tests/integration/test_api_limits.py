"""Limits of requests by key and class of route, and of wrong keys by address."""

import asyncio
import re
import time
from collections import Counter
from collections.abc import MutableMapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import httpx
import pytest
from structlog.testing import capture_logs

from api.http import authentication
from api.http.authentication import Authentication, Keyring
from api.http.deps import Services
from api.security.key_uses import KeyUses
from api.security.limits import MAX_ADDRESSES, Permits, WrongKeys
from api.security.vouching import Vouching
from api.server.serving import address_of, listening, serving
from shared.adapters.local.clock import SystemClock
from shared.domain.errors import Transient
from shared.domain.ops.access import ApiKey, Role, digest_of, new_key
from tests.support.api.rest_api import SPEC, Api, Follower, api, client_of, problem

SHOWN = re.compile(r'"(\w+)";r=(\d+);t=(\d+)')


class StoppedClock(SystemClock):
    """A clock whose measured time stands still, so that nothing refills."""

    def elapsed(self) -> float:
        return 1000.0


def limited(served: Api, **limits: Any) -> None:
    """Exchange the limits of the application."""
    services: Services = served.app.state.services
    served.app.state.services = replace(services, clock=StoppedClock(), **limits)


@pytest.mark.parametrize(
    ("method", "path", "limits", "name"),
    [
        ("GET", "/v1/crawls", Permits(reads=1), "read"),
        ("PUT", "/v1/crawls/docs", Permits(writes=1), "write"),
        ("GET", "/v1/events", Permits(bulk=1), "bulk"),
    ],
)
def test_each_class_of_route_has_a_limit_that_is_shown(
    tmp_path: Path, method: str, path: str, limits: Permits, name: str
) -> None:
    async def story() -> None:
        async with api(tmp_path / "crawl.db") as served, served.as_role(Role.OPERATOR) as client:
            limited(served, permits=limits)
            body = {"spec": SPEC} if method == "PUT" else None
            answers = [await client.request(method, path, json=body) for _ in range(11)]
            assert {each.status_code for each in answers[:10]} <= {200, 201, 503}
            for response in answers:
                assert response.headers["ratelimit-policy"] == f'"{name}";q=10;w=10'
            shown = [SHOWN.fullmatch(each.headers["ratelimit"]) for each in answers]
            assert [(each[1], int(each[2])) for each in shown if each] == [(name, n) for n in (*range(9, -1, -1), 0)]
            said = problem(answers[-1], 429, "rate-limited")
            assert answers[-1].headers["retry-after"] == "1"
            assert f"more than 1 requests a second of the class {name}" in said["detail"]
            assert (await client.get("/v1/lag")).status_code != 429 or name == "read", "other classes go on"
            async with served.as_role(Role.ADMIN) as other:
                assert (await other.request(method, path, json=body)).status_code != 429, "and so do other keys"

    asyncio.run(story())


def test_without_a_limit_there_are_no_headers(tmp_path: Path) -> None:
    async def story() -> None:
        async with api(tmp_path / "crawl.db") as served, served.as_role(Role.VIEWER) as client:
            limited(served, permits=Permits(0, 0, 0))
            for _ in range(30):
                response = await client.get("/v1/crawls")
                assert response.status_code == 200
                assert "ratelimit" not in response.headers

    asyncio.run(story())


def test_a_forwarded_write_is_counted_at_the_leader_and_shown(tmp_path: Path) -> None:
    async def story() -> None:
        path = tmp_path / "crawl.db"
        async with (
            api(path) as leader,
            api(path, plane=Follower("http://leader:1"), leader=leader.app) as follower,
            follower.as_role(Role.OPERATOR) as client,
        ):
            limited(leader, permits=Permits(writes=1))
            shown = [(await client.put("/v1/crawls/docs", json={"spec": SPEC})).headers["ratelimit"] for _ in range(2)]
            assert shown == ['"write";r=9;t=1', '"write";r=8;t=2']

    asyncio.run(story())


def test_wrong_keys_of_an_address_are_refused_and_right_ones_in_use_are_not(tmp_path: Path) -> None:
    async def story() -> None:
        async with api(tmp_path / "crawl.db") as served, served.as_role(Role.VIEWER) as right:
            assert (await right.get("/v1/crawls")).status_code == 200
            with capture_logs() as logs:
                statuses: list[int] = []
                while 429 not in statuses and len(statuses) < 300:
                    async with client_of(served.app, new_key()[1]) as wrong:
                        response = await wrong.get("/v1/crawls")
                        statuses.append(response.status_code)
            assert statuses[:60] == [401] * 60
            problem(response, 429, "rate-limited")
            assert int(response.headers["retry-after"]) >= 1
            assert (await right.get("/v1/crawls")).status_code == 200
            limits = [line["address"] for line in logs if line["event"] == "wrong_keys.limited"]
            assert limits[:1] == ["127.0.0.1"]

    asyncio.run(story())


def test_a_flood_of_wrong_keys_is_counted_and_neither_logged_nor_served(tmp_path: Path) -> None:
    async def story() -> None:
        async with api(tmp_path / "crawl.db", wrong_keys=1) as served, client_of(served.app, new_key()[1]) as wrong:
            assert (await wrong.get("/v1/crawls")).status_code == 401
            with capture_logs() as logs:
                for method in ("GET", "PUT", "HEAD", "VERB"):
                    for path in ("/v1/crawls", "/v1/nothing"):
                        response = await wrong.request(method, path, headers={"X-Request-Id": "mine"})
                        assert (response.status_code, response.headers["x-request-id"]) == (429, "mine")
                        assert int(response.headers["retry-after"]) >= 1
                        assert response.headers["cache-control"] == "no-store"
                        assert bool(response.content) == (method != "HEAD")
                assert (await wrong.get("/livez")).status_code == 200
            assert [line["path"] for line in logs if line["event"] == "request.answered"] == ["/livez"]
            services: Services = served.app.state.services
            assert services.wrong_keys.limited == 8

    asyncio.run(story())


def test_a_wrong_key_has_one_short_line_in_the_log(tmp_path: Path) -> None:
    async def story() -> None:
        async with api(tmp_path / "crawl.db") as served, client_of(served.app, new_key()[1]) as wrong:
            with capture_logs() as logs:
                for method in ("GET", "PUT", "HEAD", "VERB"):
                    response = await wrong.request(method, "/v1/crawls", headers={"X-Request-Id": "mine"})
                    assert (response.status_code, response.headers["x-request-id"]) == (401, "mine")
                    assert response.headers["www-authenticate"].startswith("Bearer")
                    assert response.headers["cache-control"] == "no-store"
                    assert bool(response.content) == (method != "HEAD")
            seen = [(line["event"], line["address"], line["path"], line["request"]) for line in logs]
            assert seen == [("wrong_key.refused", "127.0.0.1", "/v1/crawls", "mine")] * 4
            services: Services = served.app.state.services
            assert (services.wrong_keys.counted, services.wrong_keys.limited) == (4, 0)

    asyncio.run(story())


@pytest.mark.parametrize(
    ("error", "status", "slug", "events"),
    [
        (Transient("the database is away"), 503, "unavailable", ["request.answered"]),
        (ValueError("a row that cannot be read"), 500, "internal", ["request.failed", "request.answered"]),
    ],
)
def test_a_key_that_cannot_be_looked_up_is_judged_by_all_layers(
    tmp_path: Path, error: Exception, status: int, slug: str, events: list[str]
) -> None:
    async def story() -> None:
        async with api(tmp_path / "crawl.db") as served, client_of(served.app, new_key()[1]) as client:
            services: Services = served.app.state.services
            with patch.object(services.keyring, "holder", side_effect=error), capture_logs() as logs:
                problem(await client.get("/v1/crawls"), status, slug)
            assert [line["event"] for line in logs] == events
            assert (services.wrong_keys.counted, services.wrong_keys.limited) == (0, 0)

    asyncio.run(story())


def test_a_basic_password_counts_as_a_key_in_a_flood(tmp_path: Path) -> None:
    async def story() -> None:
        async with api(tmp_path / "crawl.db", wrong_keys=1) as served, served.as_role(Role.VIEWER) as right:
            key = right.headers["authorization"].partition(" ")[2]
            assert (await right.get("/v1/crawls")).status_code == 200
            async with client_of(served.app) as client:
                given = [
                    await client.get("/v1/crawls", auth=("key", each)) for each in (new_key()[1], new_key()[1], key)
                ]
            assert [each.status_code for each in given] == [401, 429, 200]

    asyncio.run(story())


class CountedCatalog:
    """A catalog with one key, which counts the looks at it."""

    def __init__(self, kept: ApiKey) -> None:
        self._kept = kept
        self.looks = 0

    async def key(self, key_id: str) -> ApiKey | None:
        self.looks += 1
        return self._kept if key_id == self._kept.key_id else None


class Flood:
    """The layer of authentication alone, with the wrong and right keys that reach it."""

    def __init__(self) -> None:
        key_id, self.right = new_key()
        self.counted = CountedCatalog(ApiKey(key_id, "ci", Role.VIEWER, digest_of(self.right), 0, "test"))
        catalog = cast(Any, self.counted)
        self.keyring = Keyring(catalog)
        self.wrong_keys = WrongKeys()
        clock = StoppedClock()
        self.layer = Authentication(
            self._app,
            self.keyring,
            Vouching(catalog, clock),
            KeyUses(catalog),
            self.wrong_keys,
            clock,
        )
        self.statuses: list[int] = []

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(self, key: str, address: str) -> int:
        status = 0

        async def sending(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            status = message.get("status", status)

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"", "more_body": False}

        scope = {
            "type": "http", "method": "GET", "path": "/v1/crawls", "client": (address, 1),
            "headers": [(b"authorization", f"Bearer {key}".encode())], "state": {"request_id": "r"},
        }  # fmt: skip
        await self.layer(scope, receive, sending)
        return status


def test_a_flood_of_wrong_keys_costs_no_looks_and_right_ones_go_on() -> None:
    """One address sends 20,000 wrong keys. The database is asked for as many as the limit allows."""

    async def story() -> None:
        flood = Flood()
        assert await flood.send(flood.right, "10.0.0.1") == 200
        wrong = new_key()[1]
        statuses = [0, 0]
        for number in range(20_000):
            statuses[await flood.send(wrong, "10.0.0.1") == 429] += 1
            if number % 100 == 0:
                assert await flood.send(flood.right, "10.0.0.1") == 200
        assert statuses[0] == 60
        assert flood.counted.looks <= 60 + 201, "and at most one for each request with the right key"

    asyncio.run(story())


class IssuedKeys:
    """A catalog of three keys."""

    def __init__(self) -> None:
        made = dict(new_key() for _ in range(3))
        self.keys = list(made.values())
        self._kept = {
            key_id: ApiKey(key_id, "ci", Role.VIEWER, digest_of(key), 0, "test") for key_id, key in made.items()
        }

    async def key(self, key_id: str) -> ApiKey | None:
        return self._kept.get(key_id)


def test_key_in_constant_use_stays_in_a_full_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache drops the identity that was verified longest ago."""
    monkeypatch.setattr(authentication, "_CACHED", 2)
    monkeypatch.setattr(authentication, "_CACHED_S", 0.0)

    async def story() -> None:
        issued = IssuedKeys()
        keyring = Keyring(cast(Any, issued))
        used, other, last = issued.keys
        for key in (used, other, used, last):
            assert await keyring.holder(key) is not None
        assert [keyring.has_seen(key) for key in issued.keys] == [True, False, True]

    asyncio.run(story())


def test_wrong_keys_of_many_addresses_take_bounded_memory() -> None:
    async def story() -> None:
        flood = Flood()
        wrong = new_key()[1]
        for number in range(MAX_ADDRESSES + 500):
            assert await flood.send(wrong, f"10.1.{number >> 8}.{number & 255}") == 401
        assert len(flood.wrong_keys) == MAX_ADDRESSES
        assert repr(flood.keyring) == "<Keyring cached=0>"
        assert await flood.send(flood.right, "10.0.0.1") == 200

    asyncio.run(story())


@pytest.mark.long
def test_right_keys_from_elsewhere_are_answered_under_a_flood(tmp_path: Path) -> None:
    """Over sockets: three addresses flood, each with new wrong keys. Right keys that were never used before, from other
    addresses, are all answered. What a flood leaves in memory is one counter for each of its addresses."""
    wrong, right = [f"127.0.1.{number}" for number in (1, 2, 3)], [f"127.0.2.{number}" for number in range(1, 7)]

    async def story() -> None:
        async with api(tmp_path / "crawl.db") as served, served.as_role(Role.ADMIN) as admin:
            listener = listening("127.0.0.1:0")
            keys = [
                (await admin.post("/v1/api-keys", json={"name": f"k{number}", "role": "viewer"})).json()["key"]
                for number in range(len(right))
            ]
            flooded = Counter[tuple[str, int]]()
            with listener:
                async with serving(served.app, listener):
                    url = f"http://{address_of(listener)}/v1/crawls"

                    async def send(address: str, given: list[str], statuses: list[int]) -> None:
                        transport = httpx.AsyncHTTPTransport(local_address=address)
                        async with httpx.AsyncClient(transport=transport, timeout=30) as client:
                            for key in given:
                                response = await client.get(url, headers={"Authorization": f"Bearer {key}"})
                                statuses.append(response.status_code)
                                flooded[address, response.status_code] += 1

                    answered: list[int] = []
                    begun = time.monotonic()
                    async with asyncio.TaskGroup() as tasks:
                        for address in wrong:
                            tasks.create_task(send(address, [new_key()[1] for _ in range(200)], []))
                        for address, key in zip(right, keys, strict=True):
                            tasks.create_task(send(address, [key] * 50, answered))
            assert answered == [200] * 300
            allowed = 61 + time.monotonic() - begun  # 60 at once, then one in each second
            assert all(60 <= flooded[address, 401] <= allowed for address in wrong), flooded
            assert all(flooded[address, 401] + flooded[address, 429] == 200 for address in wrong), flooded
            services: Services = served.app.state.services
            assert len(services.wrong_keys) == len(wrong)
            assert repr(services.keyring) == f"<Keyring cached={len(right) + 1}>", "right keys alone, and the admin's"
            assert repr(services.uses) == f"<KeyUses {len(right) + 1} to store>"

    asyncio.run(story())


def test_all_addresses_of_an_ipv6_network_are_one_client() -> None:
    wrong_keys = WrongKeys(per_minute=2)
    for number in range(1, 4):
        wrong_keys.count(f"2001:db8:0:1::{number}", 0.0)
    assert wrong_keys.wait_s("2001:db8:0:1:ffff::1", 0.0) == 30
    assert wrong_keys.wait_s("2001:db8:0:2::1", 0.0) == 0
    assert len(wrong_keys) == 1
