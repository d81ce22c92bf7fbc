"""API keys and client certificates over the API: what was put, who is accepted from where, and until when."""

import asyncio
import hashlib
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from structlog.testing import capture_logs

from api.security.vouching import CLIENT, Vouching
from api.server.serving import address_of, listening, serving
from shared.adapters.local.clock import SystemClock
from shared.domain.ops.access import ApiKey, Role, digest_of, new_key
from shared.domain.ops.identities import Peer, PeerCertificate
from shared.tls import ClientTls, ServerTls, TlsSettings
from tests.support.api.rest_api import SOMEONE, SPEC, Api, Follower, api, client_of, of_peer, problem
from tests.support.engines.certificates import OPENSSL, Certificate, authority, signed

HERE = "127.0.0.1"  # what httpx says of a client in this process
WHOLE = {
    "role": "operator", "kind": "key", "expires_at": "2099-01-01T02:00:00+02:00",
    "networks": ["127.0.0.0/8", "10.1.2.3"], "certificate": None,
}  # fmt: skip


@pytest.mark.parametrize("spec", [{"role": "viewer"}, WHOLE, {"expires_at": None, "role": "admin"}])
def test_get_returns_what_was_put_and_what_is_in_effect(tmp_path: Path, spec: dict[str, Any]) -> None:
    async def story() -> None:
        async with api(tmp_path / "crawl.db") as served, served.as_role(Role.ADMIN) as admin:
            made = await admin.put("/v1/api-keys/ci", json=spec)
            assert (made.status_code, made.headers["location"]) == (201, "/v1/api-keys/ci")
            again = await admin.put("/v1/api-keys/ci", json=spec)
            assert (again.status_code, again.json()["key"]) == (200, None)
            got = await admin.get("/v1/api-keys/ci")
            assert {**got.json(), "key": made.json()["key"]} == made.json()
            assert got.json()["spec"] == spec
            assert got.json()["effective"]["role"] == spec["role"]
            assert got.headers["etag"] == made.headers["etag"]
            listed = await admin.get("/v1/api-keys")
            assert [each for each in listed.json()["items"] if each["name"] == "ci"] == [got.json()]
            assert made.json()["key"] not in listed.text

    asyncio.run(story())


def test_effective_bounds_are_in_canonical_form(tmp_path: Path) -> None:
    async def story() -> None:
        async with api(tmp_path / "crawl.db") as served, served.as_role(Role.ADMIN) as admin:
            effective = (await admin.put("/v1/api-keys/ci", json=WHOLE)).json()["effective"]
            assert effective["expires_at"] == "2099-01-01T00:00:00Z"
            assert effective["networks"] == ["127.0.0.0/8", "10.1.2.3/32"]

    asyncio.run(story())


def test_a_replaced_key_works_on_with_its_new_role_and_a_deleted_one_not(tmp_path: Path) -> None:
    async def story() -> None:
        async with api(tmp_path / "crawl.db") as served, served.as_role(Role.ADMIN) as admin:
            made = (await admin.put("/v1/api-keys/ci", json={"role": "viewer"})).json()
            async with client_of(served.app, made["key"]) as client:
                problem(await client.post("/v1/crawls", json={"name": "docs", "spec": SPEC}), 403, "forbidden")
                changed = await admin.put("/v1/api-keys/ci", json={"role": "operator"})
                assert changed.json()["id"] == made["id"]
                assert (await client.post("/v1/crawls", json={"name": "docs", "spec": SPEC})).status_code == 201
                stale = await admin.put(
                    "/v1/api-keys/ci", json={"role": "admin"}, headers={"If-Match": f'"{made["id"]}-0-1"'}
                )
                problem(stale, 412, "lost-update")
                revoked = await admin.delete("/v1/api-keys/ci")
                assert (revoked.status_code, revoked.json()["id"], revoked.json()["key"]) == (200, made["id"], None)
                assert revoked.json()["revoked_at"] is not None
                problem(await client.get("/v1/crawls"), 401, "unauthenticated")
            problem(await admin.get("/v1/api-keys/ci"), 404, "not-found")
            again = (await admin.post("/v1/api-keys", json={"name": "ci", "role": "viewer"})).json()
            assert again["id"] != made["id"], "a revoked name may be used again"
            every = (await admin.get("/v1/api-keys", params={"revoked": True, "limit": 2})).json()
            cursor, ours = every["next"], [each for each in every["items"] if each["name"] == "ci"]
            while cursor is not None:
                page = (await admin.get("/v1/api-keys", params={"revoked": True, "limit": 2, "cursor": cursor})).json()
                cursor = page["next"]
                ours += [each for each in page["items"] if each["name"] == "ci"]
            assert {each["id"]: each["revoked_at"] is None for each in ours} == {made["id"]: False, again["id"]: True}
            lines = (await admin.get("/v1/audit", params={"target": "ci"})).json()["items"]
            assert [line["action"] for line in lines] == ["key.create", "key.revoke", "key.replace", "key.create"]
            assert lines[1]["before"] == {"id": made["id"], "role": "operator"}

    asyncio.run(story())


def test_plan_of_a_key_compares_what_is_in_effect_and_changes_nothing(tmp_path: Path) -> None:
    async def story() -> None:
        async with api(tmp_path / "crawl.db") as served, served.as_role(Role.ADMIN) as admin:
            at = "/v1/api-keys/ci"
            planned = await admin.post(f"{at}/plan", json=WHOLE)
            assert planned.json() == {"action": "create", "changes": [], "warnings": []}
            problem(await admin.get(at), 404, "not-found")
            made = await admin.put(at, json=WHOLE)
            same = {
                "role": "operator",
                "expires_at": "2099-01-01T00:00:00Z",
                "networks": ["127.0.0.0/8", "10.1.2.3/32"],
            }
            for body in (WHOLE, same, {**same, "kind": "key"}):
                answer = (await admin.post(f"{at}/plan", json=body)).json()
                assert answer == {"action": "none", "changes": [], "warnings": []}
            planned = (await admin.post(f"{at}/plan", json={"role": "viewer", "certificate": "dns:A.test"})).json()
            assert planned["action"] == "update"
            changes = {each["path"]: each["after"] for each in planned["changes"]}
            assert changes == {"role": "viewer", "expires_at": None, "networks": [], "certificate": "dns:a.test"}
            assert (await admin.get(at)).json() == {**made.json(), "key": None}
            first = next(iter(served.keys.values()))
            assert all(text not in json.dumps(planned) for text in (made.json()["key"], first))

    asyncio.run(story())


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ({"role": "viewer", "networks": ["10.1.2.3/8"]}, "networks[0]"),
        ({"role": "viewer", "networks": ["10.0.0.0/8"] * 33}, "networks"),
        ({"role": "viewer", "networks": ["::/0", "fe80::1%a,10.0.0.0/128"]}, "networks[1]"),
        ({"role": "viewer", "certificate": "cn:tf"}, "certificate"),
        ({"role": "viewer", "certificate": "dns:a\0b"}, "certificate"),
        ({"role": "viewer", "expires_at": 4_000_000_000}, "expires_at"),
        ({"role": "viewer", "expires_at": "2099-01-01T00:00:00"}, "expires_at"),
        ({"role": "root"}, "role"),
        ({"role": "viewer", "network": []}, "network"),
        ({"role": "viewer", "kind": "certificate"}, "certificate"),
    ],
)
def test_a_declaration_that_cannot_be_used_names_its_field(tmp_path: Path, spec: dict[str, Any], path: str) -> None:
    async def story() -> None:
        async with api(tmp_path / "crawl.db") as served, served.as_role(Role.ADMIN) as admin:
            said = problem(await admin.put("/v1/api-keys/ci", json=spec), 422, "invalid")
            assert [each["path"] for each in said["errors"]] == [path]
            planned = problem(await admin.post("/v1/api-keys/ci/plan", json=spec), 422, "invalid")
            assert planned["errors"] == said["errors"]
            problem(await admin.get("/v1/api-keys/ci"), 404, "not-found")

    asyncio.run(story())


def test_certificate_is_refused_to_become_a_key_with_what_to_do(tmp_path: Path) -> None:
    async def story() -> None:
        async with api(tmp_path / "crawl.db") as served, served.as_role(Role.ADMIN) as admin:
            at = "/v1/api-keys/ci"
            proof = {"role": "viewer", "kind": "certificate", "certificate": "dns:ci.test"}
            made = await admin.put(at, json=proof)
            assert (made.status_code, made.json()["key"]) == (201, None)
            for spec in ({"role": "viewer"}, {**proof, "kind": "key"}):
                said = problem(await admin.put(at, json=spec), 422, "invalid")
                assert [(each["path"], each["hint"]) for each in said["errors"]] == [
                    ("kind", "delete it, and put it again: that makes a key with a secret")
                ]
                assert problem(await admin.post(f"{at}/plan", json=spec), 422, "invalid")["errors"] == said["errors"]
            assert (await admin.get(at)).json() == made.json()
            assert (await admin.delete(at)).status_code == 200
            assert (await admin.put(at, json={"role": "viewer"})).json()["key"].startswith("orb_")

    asyncio.run(story())


@pytest.mark.parametrize("by_post", [True, False])
@pytest.mark.parametrize(
    ("bounds", "status", "reason"),
    [
        ({"expires_at": "2001-01-01T00:00:00Z"}, 401, "expired"),
        ({"networks": ["10.0.0.0/8"]}, 403, "network"),
        ({"certificate": "dns:tf.example.org"}, 403, "certificate"),
        ({"networks": ["127.0.0.0/8"], "expires_at": "2099-01-01T00:00:00Z"}, 200, None),
    ],
)
def test_a_key_is_accepted_within_its_bounds_only(
    tmp_path: Path, by_post: bool, bounds: dict[str, Any], status: int, reason: str | None
) -> None:
    async def story() -> None:
        async with api(tmp_path / "crawl.db") as served, served.as_role(Role.ADMIN) as admin:
            spec = {"role": "viewer", **bounds}
            if by_post:
                made = await admin.post("/v1/api-keys", json={"name": "ci", **spec})
            else:
                made = await admin.put("/v1/api-keys/ci", json=spec)
            async with client_of(served.app, made.json()["key"]) as client:
                with capture_logs() as logs:
                    response = await client.get("/v1/crawls")
            assert response.status_code == status
            refused = [(line["reason"], line["address"]) for line in logs if line["event"] == "identity.refused"]
            assert refused == ([] if reason is None else [(reason, HERE)])

    asyncio.run(story())


def test_key_stored_with_a_network_that_is_none_is_refused(tmp_path: Path) -> None:
    """Earlier versions accepted a zone with a comma, and each request with such a key was an error of the master."""

    async def story() -> None:
        async with api(tmp_path / "crawl.db") as served, served.as_role(Role.ADMIN) as admin:
            key_id, key = new_key()
            networks = ("fe80::1%a,10.0.0.0/128",)
            made = ApiKey(key_id, "old", Role.VIEWER, digest_of(key), 0, "test", networks=networks)
            await served.catalog.add_key(made, actor=SOMEONE)
            async with client_of(served.app, key) as client:
                problem(await client.get("/v1/crawls"), 403, "forbidden")
            put = await admin.put("/v1/api-keys/old", json={"role": "viewer", "networks": ["127.0.0.0/8"]})
            assert put.status_code == 200, put.text
            async with client_of(served.app, key) as client:
                assert (await client.get("/v1/crawls")).status_code == 200

    asyncio.run(story())


def test_the_last_use_is_stored_by_the_minute_and_shown(tmp_path: Path) -> None:
    async def story() -> None:
        async with api(tmp_path / "crawl.db") as served, served.as_role(Role.ADMIN) as admin:
            made = (await admin.put("/v1/api-keys/ci", json={"role": "viewer"})).json()
            assert made["last_used_at"] is None
            async with client_of(served.app, made["key"]) as client:
                assert (await client.get("/v1/crawls")).status_code == 200
            before = await admin.get("/v1/api-keys/ci")
            assert before.json()["last_used_at"] is None
            await served.app.state.services.uses.store()
            after = await admin.get("/v1/api-keys/ci", headers={"If-None-Match": before.headers["etag"]})
            assert after.status_code == 200, "the last use changes what is shown"
            assert after.json()["last_used_at"] is not None
            changed = await admin.put(
                "/v1/api-keys/ci", json={"role": "operator"}, headers={"If-Match": before.headers["etag"]}
            )
            assert changed.status_code == 200, "but it is no change of the key"

    asyncio.run(story())


# --- certificates -----------------------------------------------------------------------------------------------------

needs_openssl = pytest.mark.skipif(OPENSSL is None, reason="the openssl command makes the certificates")


@asynccontextmanager
async def over_tls(served: Api, files: TlsSettings) -> AsyncIterator[str]:
    listener = listening("127.0.0.1:0")
    with listener:
        async with serving(served.app, listener, ServerTls(files)):
            yield f"https://{address_of(listener)}"


def files_of(ca: Certificate, own: Certificate) -> TlsSettings:
    return TlsSettings(ca.cert, own.cert, own.key)


async def asked(url: str, files: TlsSettings, key: str | None = None, **headers: str) -> httpx.Response:
    if key is not None:
        headers["Authorization"] = f"Bearer {key}"
    async with httpx.AsyncClient(verify=ClientTls(files).context) as client:
        return await client.get(url, headers=headers)


@needs_openssl
def test_a_stolen_key_opens_nothing_without_its_certificate(tmp_path: Path) -> None:
    async def story() -> None:
        ca = authority(tmp_path)
        master, ours, thief = (signed(tmp_path, ca, name) for name in ("master", "ours", "thief"))
        named = signed(tmp_path, ca, "named", "IP:127.0.0.1,DNS:tf.example.org")
        fingerprint = hashlib.sha256(ssl.PEM_cert_to_DER_cert(ours.cert.read_text())).hexdigest()
        async with (
            api(tmp_path / "crawl.db") as served,
            served.as_role(Role.ADMIN) as admin,
            over_tls(served, files_of(ca, master)) as url,
        ):
            for name, certificate, holder in (("a", f"sha256:{fingerprint}", ours), ("b", "dns:tf.example.org", named)):
                made = await admin.put(f"/v1/api-keys/{name}", json={"role": "viewer", "certificate": certificate})
                key = made.json()["key"]
                assert (await asked(f"{url}/v1/crawls", files_of(ca, holder), key)).status_code == 200
                problem(await asked(f"{url}/v1/crawls", files_of(ca, thief), key), 403, "forbidden")
                problem(await asked(f"{url}/v1/crawls", files_of(ca, holder)), 401, "unauthenticated")

    asyncio.run(story())


@needs_openssl
def test_a_certificate_is_an_identity_until_it_is_deleted(tmp_path: Path) -> None:
    async def story() -> None:
        ca = authority(tmp_path)
        master, ours, other = (
            signed(tmp_path, ca, name, f"IP:127.0.0.1,URI:spiffe://prod/{name}") for name in ("m", "ours", "other")
        )
        async with (
            api(tmp_path / "crawl.db") as served,
            served.as_role(Role.ADMIN) as admin,
            over_tls(served, files_of(ca, master)) as url,
        ):
            spec = {"role": "viewer", "kind": "certificate", "certificate": "uri:spiffe://prod/ours"}
            made = await admin.put("/v1/api-keys/tf", json=spec)
            assert (made.status_code, made.json()["key"]) == (201, None)
            assert (await asked(f"{url}/v1/crawls", files_of(ca, ours))).status_code == 200
            said = problem(await asked(f"{url}/v1/api-keys", files_of(ca, ours)), 403, "forbidden")
            assert said["detail"] == "this needs the role admin, and the certificate 'tf' has viewer"
            problem(await asked(f"{url}/v1/crawls", files_of(ca, other)), 401, "unauthenticated")
            refused = await asked(f"{url}/v1/crawls", files_of(ca, ours), "orb_wrong")
            problem(refused, 401, "unauthenticated")  # a key that is sent must be right
            assert (await admin.delete("/v1/api-keys/tf")).status_code == 200
            problem(await asked(f"{url}/v1/crawls", files_of(ca, ours)), 401, "unauthenticated")

    asyncio.run(story())


@pytest.mark.parametrize(
    ("bounds", "status", "detail", "hint"),
    [
        ({"expires_at": "2001-01-01T00:00:00Z"}, 401, "the certificate 'tf' has ended", "an admin can give it"),
        ({"networks": ["10.2.0.0/16"]}, 403, "the certificate 'tf' is not accepted from here", "the certificate's"),
    ],
)
def test_certificate_outside_its_bounds_is_called_a_certificate(
    tmp_path: Path, bounds: dict[str, Any], status: int, detail: str, hint: str
) -> None:
    async def story() -> None:
        async with api(tmp_path / "crawl.db") as served, served.as_role(Role.ADMIN) as admin:
            spec = {"role": "viewer", "kind": "certificate", "certificate": "dns:tf.example.org", **bounds}
            assert (await admin.put("/v1/api-keys/tf", json=spec)).status_code == 201
            async with client_of(of_peer(served.app, OURS)) as client:
                said = problem(
                    await client.get("/v1/crawls"), status, "forbidden" if status == 403 else "unauthenticated"
                )
            assert said["detail"] == detail
            assert hint in said["hint"]
            assert "role" not in said["title"]

    asyncio.run(story())


@pytest.mark.parametrize("bounds", [{"networks": ["10.2.0.0/16"]}, {"certificate": "dns:other.example.org"}])
def test_key_refused_for_its_bounds_is_not_said_to_lack_a_role(tmp_path: Path, bounds: dict[str, Any]) -> None:
    async def story() -> None:
        async with api(tmp_path / "crawl.db") as served, served.as_role(Role.ADMIN) as admin:
            key = (await admin.put("/v1/api-keys/ci", json={"role": "admin", **bounds})).json()["key"]
            async with client_of(of_peer(served.app, OURS), key) as client:
                said = problem(await client.get("/v1/crawls"), 403, "forbidden")
            assert said["title"] == "The key or certificate does not allow this"
            assert said["detail"].startswith("the key 'ci'")

    asyncio.run(story())


# --- forwarded requests -----------------------------------------------------------------------------------------------


OURS = Peer("10.1.0.9", PeerCertificate(frozenset({"dns:tf.example.org"})))
MASTER = Peer("10.9.0.1", PeerCertificate(frozenset({"dns:m2.example.org"})))


def test_the_leader_judges_a_forwarded_request_by_its_client(tmp_path: Path) -> None:
    """The leader sees the connection of the follower; networks and certificates are those of the client."""

    async def story() -> None:
        path = tmp_path / "crawl.db"
        async with (
            api(path) as leader,
            leader.as_role(Role.ADMIN) as admin,
            api(path, plane=Follower("http://leader:1"), leader=of_peer(leader.app, MASTER)) as follower,
        ):
            bounds = {"role": "operator", "networks": ["10.1.0.0/16"], "certificate": "dns:tf.example.org"}
            key = (await admin.put("/v1/api-keys/tf", json=bounds)).json()["key"]
            proof = {"role": "operator", "kind": "certificate", "certificate": "dns:tf.example.org"}
            assert (await admin.put("/v1/api-keys/proof", json=proof)).status_code == 201
            for name, given in (("by-key", key), ("by-certificate", None)):
                async with client_of(of_peer(follower.app, OURS), given) as client:
                    made = await client.post("/v1/crawls", json={"name": name, "spec": SPEC})
                    assert made.status_code == 201, made.text
            async with client_of(of_peer(follower.app, MASTER), key) as client:
                problem(await client.post("/v1/crawls", json={"name": "no", "spec": SPEC}), 403, "forbidden")

    asyncio.run(story())


def test_nobody_but_a_master_says_where_a_request_comes_from(tmp_path: Path) -> None:
    async def story() -> None:
        async with api(tmp_path / "crawl.db") as served, served.as_role(Role.ADMIN) as admin:
            made = await admin.put("/v1/api-keys/tf", json={"role": "viewer", "networks": ["10.1.0.0/16"]})
            key = made.json()["key"]
            genuine = Vouching(served.catalog, SystemClock())
            scope = {
                "method": "GET", "path": "/v1/crawls", "headers": [(b"authorization", f"Bearer {key}".encode())],
            }  # fmt: skip
            signed = await genuine.sign(scope, OURS)
            mac, _, said = signed.partition(b".")
            old = Vouching(served.catalog, LateClock())
            cases = [
                (signed, "/v1/crawls", 200),
                (signed, "/v1/lag", 403),  # it is for one request
                (b"0" * 64 + b"." + said, "/v1/crawls", 403),
                (mac + b"." + said[:-4], "/v1/crawls", 403),
                (b"", "/v1/crawls", 403),
                (b"\xff.\xff", "/v1/crawls", 403),
                (await old.sign(scope, OURS), "/v1/crawls", 403),
            ]
            async with client_of(served.app, key) as client:
                for value, path, status in cases:
                    response = await client.get(path, headers=[(CLIENT, value)])
                    assert response.status_code == status, (value, path)

    asyncio.run(story())


class LateClock(SystemClock):
    def unix_ms(self) -> int:
        return super().unix_ms() - 301_000
