"""Wrong keys from an address, and the right keys and certificates that are used from there."""

import asyncio
from pathlib import Path

import pytest
from starlette.types import ASGIApp

from api.http import authentication
from shared.domain.ops.access import Role, new_key
from shared.domain.ops.identities import Peer, PeerCertificate
from tests.support.api.rest_api import SPEC, Follower, api, client_of, of_peer

FEW = 5  # a minute: no further one is allowed while a test runs
OURS = Peer("10.1.0.9", PeerCertificate(frozenset({"dns:tf.example.org"})))
MASTER = Peer("10.9.0.1", PeerCertificate(frozenset({"dns:m2.example.org"})))
NEIGHBOUR = Peer(OURS.address, PeerCertificate(frozenset({"dns:unmapped.example.org"})))
PROOF = {"role": "admin", "kind": "certificate", "certificate": "dns:tf.example.org"}


async def status_of(app: ASGIApp, peer: Peer, path: str = "/v1/api-keys") -> int:
    """Send a request without a key as this peer."""
    async with client_of(of_peer(app, peer)) as client:
        return (await client.get(path)).status_code


async def flooded(app: ASGIApp) -> list[int]:
    """Send wrong keys and certificates from the address of OURS, and return the statuses up to the first 429."""
    statuses: list[int] = []
    wrong = ("Bearer " + new_key()[1], "Bearer no-key", "Basic a2V5Om5v", "Bearer sha256:" + "0" * 64, None)
    for given in wrong * 2:
        headers = {} if given is None else {"Authorization": given}
        async with client_of(of_peer(app, NEIGHBOUR)) as client:
            statuses.append((await client.get("/v1/crawls", headers=headers)).status_code)
        if statuses[-1] == 429:
            break
    return statuses


def test_certificate_in_use_stays_accepted_after_wrong_keys_of_its_address(tmp_path: Path) -> None:
    async def story() -> None:
        async with api(tmp_path / "crawl.db", wrong_keys=FEW) as served, served.as_role(Role.ADMIN) as admin:
            assert (await admin.put("/v1/api-keys/tf", json=PROOF)).status_code == 201
            unused = {**PROOF, "certificate": "dns:unused.example.org"}
            assert (await admin.put("/v1/api-keys/unused", json=unused)).status_code == 201
            assert await status_of(served.app, OURS) == 200
            assert await flooded(served.app) == [401] * FEW + [429]
            assert [await status_of(served.app, OURS) for _ in range(3)] == [200] * 3
            assert await status_of(served.app, NEIGHBOUR) == 429, "a certificate without an identity counts as wrong"
            new = Peer(OURS.address, PeerCertificate(frozenset({"dns:unused.example.org"})))
            assert await status_of(served.app, new) == 429, "it was not used here before"
            assert (await admin.delete("/v1/api-keys/tf")).status_code == 200
            assert await status_of(served.app, OURS) == 429, "it was revoked"

    asyncio.run(story())


@pytest.mark.parametrize("change", ["revoke", "rename"])
def test_certificate_changed_at_another_master_is_limited_like_a_wrong_one(
    tmp_path: Path, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authentication, "_CACHED_S", 0.0)

    async def story() -> None:
        path = tmp_path / "crawl.db"
        async with (
            api(path, wrong_keys=FEW) as served,
            api(path, wrong_keys=FEW) as other,
            other.as_role(Role.ADMIN) as admin,
        ):
            assert (await admin.put("/v1/api-keys/tf", json=PROOF)).status_code == 201
            assert await status_of(served.app, OURS) == 200
            assert (await flooded(served.app))[-1] == 429
            assert await status_of(served.app, OURS) == 200
            if change == "revoke":
                assert (await admin.delete("/v1/api-keys/tf")).status_code == 200
            else:
                renamed = {**PROOF, "certificate": "dns:other.example.org"}
                assert (await admin.put("/v1/api-keys/tf", json=renamed)).status_code == 200
            assert [await status_of(served.app, OURS) for _ in range(2)] == [401, 429]

    asyncio.run(story())


def test_identity_accepted_by_a_follower_is_not_limited_at_the_leader(tmp_path: Path) -> None:
    """The leader got wrong keys from the client's address, and never saw the client's key or certificate before."""

    async def story() -> None:
        path = tmp_path / "crawl.db"
        async with (
            api(path, wrong_keys=FEW) as leader,
            leader.as_role(Role.ADMIN) as admin,
            api(path, plane=Follower("http://leader:1"), leader=of_peer(leader.app, MASTER)) as follower,
        ):
            assert (await admin.put("/v1/api-keys/tf", json=PROOF)).status_code == 201
            key = (await admin.put("/v1/api-keys/ci", json={"role": "operator"})).json()["key"]
            assert (await flooded(leader.app))[-1] == 429
            for name, given in (("by-key", key), ("by-certificate", None)):
                async with client_of(of_peer(follower.app, OURS), given) as client:
                    assert (await client.get("/v1/crawls")).status_code == 200
                    made = await client.post("/v1/crawls", json={"name": name, "spec": SPEC})
                    assert made.status_code == 201, made.text
            assert await status_of(leader.app, NEIGHBOUR) == 429

    asyncio.run(story())
