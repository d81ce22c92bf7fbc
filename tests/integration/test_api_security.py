"""Who may ask what, and that every refusal is a problem that says why."""

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from api.http.authentication import first_key
from api.http.limits import BODY_BYTES
from shared.domain.errors import Transient
from shared.domain.ops.access import Role
from tests.support.api.rest_api import SPEC, api, client_of, problem


def test_without_a_key_that_opens_there_is_nothing_but_health(tmp_path: Path) -> None:
    async def story() -> None:
        async with api(tmp_path / "crawl.db") as served:
            assert (await served.anonymous.get("/livez")).json() == {"status": "ok"}
            for path, item in served.app.openapi()["paths"].items():
                for method in item:
                    if path.startswith("/v1/"):
                        response = await served.anonymous.request(method, path, content=b"{not json")
                        problem(response, 401, "unauthenticated")
                        assert response.headers["www-authenticate"].startswith("Bearer")
            problem(await served.anonymous.get("/v1/no-such-thing"), 401, "unauthenticated")
            good = served.keys[Role.ADMIN]
            for bad in (
                "orb",
                good[:-1] + ("A" if good[-1] != "A" else "B"),
                good + "x",
                "orb_" + "0" * 16 + good[20:],
            ):
                async with client_of(served.app, bad) as client:
                    said = problem(await client.get("/v1/crawls"), 401, "unauthenticated")
                    assert "`orb key create` replaces a lost admin key" in said["hint"]

    asyncio.run(story())


def test_a_role_may_do_what_it_is_for_and_no_more(tmp_path: Path) -> None:
    async def story() -> None:
        async with api(tmp_path / "crawl.db") as served:
            async with served.as_role(Role.VIEWER) as viewer:
                assert (await viewer.get("/v1/crawls")).status_code == 200
                problem(await viewer.post("/v1/crawls", json={"name": "docs", "spec": SPEC}), 403, "forbidden")
                problem(await viewer.get("/v1/api-keys"), 403, "forbidden")
            async with served.as_role(Role.OPERATOR) as operator:
                problem(await operator.post("/v1/api-keys", json={"name": "x", "role": "admin"}), 403, "forbidden")

    asyncio.run(story())


def test_a_key_is_shown_once_kept_as_a_hash_and_stops_working_when_revoked(tmp_path: Path) -> None:
    async def story() -> None:
        async with api(tmp_path / "crawl.db") as served, served.as_role(Role.ADMIN) as admin:
            wanted, again = {"name": "ci", "role": "viewer"}, {"Idempotency-Key": "once"}
            made = (await admin.post("/v1/api-keys", json=wanted, headers=again)).json()
            problem(await admin.post("/v1/api-keys", json=wanted, headers=again), 409, "exists")
            async with client_of(served.app, made["key"]) as client:
                assert (await client.get("/v1/crawls")).status_code == 200
                assert (await admin.delete("/v1/api-keys/ci")).status_code == 200
                problem(await client.get("/v1/crawls"), 401, "unauthenticated")
            assert made["id"] not in (await admin.get("/v1/api-keys")).text
            listed = (await admin.get("/v1/api-keys", params={"revoked": True})).text
            assert made["id"] in listed
            assert made["key"] not in listed
        for file in tmp_path.iterdir():
            assert made["key"].encode() not in file.read_bytes()

    asyncio.run(story())


def test_the_first_key_is_made_once(tmp_path: Path) -> None:
    async def story() -> None:
        async with api(tmp_path / "crawl.db") as served:
            assert not await served.catalog.add_first_key(first_key(0)[0])

    asyncio.run(story())


def test_unknown_fields_and_wrong_ones_are_named_by_their_path(tmp_path: Path) -> None:
    async def story() -> None:
        async with api(tmp_path / "crawl.db") as served, served.as_role(Role.OPERATOR) as client:
            extra = await client.post("/v1/crawls", json={"name": "docs", "spec": SPEC, "colour": 1})
            assert [each["path"] for each in problem(extra, 422, "invalid")["errors"]] == ["colour"]
            deep = {"seeds": ["https://example.org/"], "scope": {"max_dept": 3, "include": ["("]}, "weight": 0}
            wrong = problem(await client.put("/v1/crawls/docs", json={"spec": deep}), 422, "invalid")
            found = {each["path"]: each.get("hint", "") for each in wrong["errors"]}
            assert {"spec.scope.max_dept", "spec.weight"} <= set(found)
            assert "max_depth" in found["spec.scope.max_dept"]
            problem(await client.post("/v1/crawls", json={"name": "Docs!", "spec": SPEC}), 422, "invalid")
            problem(await client.get("/v1/crawls?limit=0"), 422, "invalid")
            named = {"spec": {**SPEC, "name": "other"}}
            problem(await client.put("/v1/crawls/docs", json=named), 422, "invalid")

    asyncio.run(story())


def test_what_is_not_there_not_a_method_or_not_json_is_a_problem_too(tmp_path: Path) -> None:
    async def story() -> None:
        async with api(tmp_path / "crawl.db") as served, served.as_role(Role.OPERATOR) as client:
            problem(await client.get("/v1/nothing"), 404, "not-found")
            problem(await client.get("/nothing"), 404, "not-found")
            problem(await client.put("/v1/crawls"), 405, "method-not-allowed")
            as_json = {"Content-Type": "application/json"}
            problem(await client.post("/v1/crawls", content=b"{", headers=as_json), 400, "malformed")
            for said in ({}, {"Content-Type": "application/x-www-form-urlencoded"}):  # as `curl -d` has it by itself
                unread = problem(
                    await client.post("/v1/crawls", content=b'{"name": "docs"}', headers=said),
                    415, "unsupported-media-type",
                )  # fmt: skip
                assert "Content-Type: application/json" in unread["hint"]

    asyncio.run(story())


@pytest.mark.parametrize("declared", [True, False])
def test_a_body_that_is_too_large_is_refused_whether_it_says_so_or_not(tmp_path: Path, declared: bool) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(BODY_BYTES // 65_536 + 2):
            yield b" " * 65_536

    async def story() -> None:
        async with api(tmp_path / "crawl.db") as served, served.as_role(Role.OPERATOR) as client:
            content = b" " * (BODY_BYTES + 1) if declared else pieces()
            as_json = {"Content-Type": "application/json"}
            problem(await client.post("/v1/crawls", content=content, headers=as_json), 413, "too-large")

    asyncio.run(story())


def test_a_compressed_body_is_refused_and_a_plain_one_is_read(tmp_path: Path) -> None:
    async def story() -> None:
        async with api(tmp_path / "crawl.db") as served, served.as_role(Role.OPERATOR) as client:
            body = json.dumps({"spec": SPEC}).encode()
            packed = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
            response = await client.put("/v1/crawls/docs", content=gzip.compress(body), headers=packed)
            assert "compressed" in problem(response, 415, "unsupported-media-type")["detail"]
            assert response.headers["accept-encoding"] == "identity"
            plain = {"Content-Type": "application/json", "Content-Encoding": "Identity"}
            assert (await client.put("/v1/crawls/docs", content=body, headers=plain)).status_code == 201
            assert (await client.get("/v1/crawls/docs", headers={"Content-Encoding": "gzip"})).status_code == 200

    asyncio.run(story())


def test_every_answer_names_its_request_and_other_origins_get_nothing(tmp_path: Path) -> None:
    async def story() -> None:
        async with api(tmp_path / "crawl.db") as served, served.as_role(Role.VIEWER) as client:
            with capture_logs() as logs:
                own = await client.get("/v1/crawls", headers={"X-Request-Id": "mine-1", "Origin": "https://evil.test"})
            assert own.headers["x-request-id"] == "mine-1"
            assert not [name for name in own.headers if name.startswith("access-control")]
            assert [line["status"] for line in logs if line["event"] == "request.answered"] == [200]
            forged = await client.get("/v1/crawls", headers={"X-Request-Id": "a b"})
            assert forged.headers["x-request-id"] not in ("a b", "mine-1")

    asyncio.run(story())


def test_database_away_is_503_bug_is_500_and_both_are_problems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        async with api(tmp_path / "crawl.db") as served, served.as_role(Role.VIEWER) as client:
            assert (await client.get("/v1/crawls/docs")).status_code == 404

            async def away(name: str) -> None:
                raise Transient("the database is away", retry_in=3)

            async def broken(name: str) -> None:
                raise RuntimeError("a bug")

            monkeypatch.setattr(served.catalog, "stamp", away)
            response = await client.get("/v1/crawls/docs")
            problem(response, 503, "unavailable")
            assert response.headers["retry-after"] == "3"
            monkeypatch.setattr(served.catalog, "stamp", broken)
            with capture_logs() as logs:
                said = problem(await client.get("/v1/crawls/docs"), 500, "internal")
            assert "a bug" not in said["detail"]
            assert [line["event"] for line in logs if line["log_level"] == "error"] == ["request.failed"]
            served.short.append("the database takes no more, as its disk is full")
            ready = await served.anonymous.get("/readyz")
            pressure = {"resource": "database", "member": "m1", "detail": served.short[0]}
            full = {"status": "ok", "missing": [], "resource_pressure": [pressure]}
            assert (ready.status_code, ready.json()) == (200, full), "it answers what is asked of it"
            served.short.clear()
            assert (await served.anonymous.get("/readyz")).json()["resource_pressure"] == []
            served.missing.append("broker")
            ready = await served.anonymous.get("/readyz")
            assert (ready.status_code, ready.json()["missing"]) == (503, ["broker"])

    asyncio.run(story())
