"""API keys by name, certificates that are identities, last uses and shared secrets, on every engine."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any

import pytest

from shared.adapters.sql.catalog.catalog import SqlCatalog
from shared.adapters.sql.frontier.store import SqlStore
from shared.domain.ops.access import ApiKey, IdentityKind, Role
from shared.domain.reads.declared import Actor
from shared.ports.catalog import Exists, LastAdmin, Missing, NoSecret, Stale
from tests.support.database.store_tables import NOW_MS, Tables

ADMIN = Actor("0" * 16, "admin", "r")
NewTables = Callable[[], AbstractAsyncContextManager[Tables]]


def catalog(t: Tables) -> SqlCatalog:
    assert isinstance(t.store, SqlStore)
    return SqlCatalog(t.store.executor)


def declared(name: str, number: int, role: Role = Role.VIEWER, **bounds: object) -> ApiKey:
    key = ApiKey(f"{number:016}", name, role, bytes([number] * 32), NOW_MS, "test", spec='{"role":"viewer"}')
    return replace(key, **bounds)  # type: ignore[arg-type]


async def put(keys: SqlCatalog, wanted: ApiKey, expected: frozenset[str] | None = None) -> tuple[ApiKey, bool]:
    return await keys.put_key(wanted, expected=expected, actor=ADMIN, now_ms=NOW_MS)


def test_a_key_that_is_declared_again_keeps_its_id_and_secret(new_tables: NewTables) -> None:
    async def story() -> None:
        async with new_tables() as t:
            keys = catalog(t)
            first, created = await put(keys, declared("ci", 1))
            assert created
            bounds = {"expires_at_ms": NOW_MS + 5, "networks": ("10.0.0.0/8", "fd00::/8"), "certificate": "dns:ci"}
            second, created = await put(keys, declared("ci", 2, Role.OPERATOR, spec="{}", **bounds))
            assert not created
            assert (second.key_id, second.digest, second.version) == (first.key_id, first.digest, 2)
            assert await keys.key_named("ci") == second == await keys.key(first.key_id)
            assert (second.networks, second.certificate, second.role) == (
                bounds["networks"], "dns:ci", Role.OPERATOR,
            )  # fmt: skip
            again, created = await put(keys, declared("ci", 3, Role.OPERATOR, spec="{}", **bounds))
            assert (again, created) == (second, False), "nothing differs"
            with pytest.raises(Stale):
                await put(keys, declared("ci", 4), frozenset({first.tag}))

    asyncio.run(story())


def test_certificate_becomes_no_key_since_it_has_no_secret(new_tables: NewTables) -> None:
    async def story() -> None:
        async with new_tables() as t:
            keys = catalog(t)
            proof: dict[str, Any] = {"kind": IdentityKind.CERTIFICATE, "certificate": "dns:ci"}
            unbound: dict[str, Any] = {}
            made, _ = await put(keys, declared("ci", 1, **proof))
            for bounds in (unbound, {"certificate": "dns:ci"}):
                with pytest.raises(NoSecret, match="'ci' is a client certificate"):
                    await put(keys, declared("ci", 2, **bounds))
            assert await keys.key_named("ci") == made
            changed, _ = await put(keys, declared("ci", 2, Role.OPERATOR, **proof))
            assert (changed.key_id, changed.role) == (made.key_id, Role.OPERATOR)
            await put(keys, declared("other", 3))
            changed, created = await put(keys, declared("other", 3, kind=IdentityKind.CERTIFICATE, certificate="dns:x"))
            assert (changed.kind, created) == (IdentityKind.CERTIFICATE, False), "a key may become a certificate"

    asyncio.run(story())


def test_masters_that_create_one_name_at_once_make_one(new_tables: NewTables) -> None:
    """Of several creates one is carried out. A PUT beside them finds the key, or makes it."""

    async def story() -> None:
        async with new_tables() as t:
            creates = (catalog(t).add_key(declared("ci", n), actor=ADMIN) for n in range(1, 6))
            *made, put_one = await asyncio.gather(*creates, put(catalog(t), declared("ci", 6)), return_exceptions=True)
            assert isinstance(put_one, tuple)
            refused = [each for each in made if isinstance(each, Exists)]
            assert [each for each in made if each is not None] == refused
            assert len(refused) == (5 if put_one[1] else 4)
            assert "there is a key 'ci' already" in str(refused[0])
            assert len(await catalog(t).keys(after=("", ""), max_count=9, revoked=True)) == 1

    asyncio.run(story())


def test_masters_that_declare_one_key_at_once_make_one(new_tables: NewTables) -> None:
    async def story() -> None:
        async with new_tables() as t:
            made = await asyncio.gather(*(put(catalog(t), declared("ci", n)) for n in range(1, 7)))
            assert sum(created for _, created in made) == 1
            assert len({key.key_id for key, _ in made}) == 1

    asyncio.run(story())


def test_a_revoked_name_gets_another_id_and_a_listing_has_each_once(new_tables: NewTables) -> None:
    async def story() -> None:
        async with new_tables() as t:
            keys = catalog(t)
            for number, name in enumerate(("b", "a", "c"), 1):
                await put(keys, declared(name, number))
            revoked = await keys.revoke_key("b", actor=ADMIN, now_ms=NOW_MS)
            assert revoked.revoked_at_ms == NOW_MS
            with pytest.raises(Missing):
                await keys.key_named("b")
            again, created = await put(keys, declared("b", 4))
            assert created
            assert again.key_id != revoked.key_id
            assert [key.name for key in await keys.keys(after=("a", "f" * 16), max_count=2)] == ["b", "c"]
            await keys.revoke_key("b", actor=ADMIN, now_ms=NOW_MS + 1)
            assert [key.name for key in await keys.keys(after=("", ""), max_count=9)] == ["a", "c"]
            both = await keys.keys(after=("a", "f" * 16), max_count=2, revoked=True)
            assert [(key.name, key.revoked_at_ms) for key in both] == [("b", NOW_MS), ("b", NOW_MS + 1)]
            (last,) = await keys.keys(after=("b", both[1].key_id), max_count=9, revoked=True)
            assert last.name == "c"

    asyncio.run(story())


def test_a_certificate_is_one_identity_and_a_fingerprint_comes_first(new_tables: NewTables) -> None:
    async def story() -> None:
        async with new_tables() as t:
            keys, proof = catalog(t), IdentityKind.CERTIFICATE
            await put(keys, declared("by-name", 1, certificate="dns:tf", kind=proof))
            await put(keys, declared("by-print", 2, certificate="sha256:" + "0" * 64, kind=proof))
            await put(keys, declared("bound", 3, certificate="dns:tf"))
            with pytest.raises(Exists, match="is the identity of 'by-name'"):
                await put(keys, declared("other", 4, certificate="dns:tf", kind=proof))
            with pytest.raises(Exists):
                await put(keys, declared("bound", 3, certificate="dns:tf", kind=proof))
            both = frozenset({"dns:tf", "sha256:" + "0" * 64})
            found = await keys.key_of_certificate(both)
            assert found is not None
            assert found.name == "by-print"
            await keys.revoke_key("by-print", actor=ADMIN, now_ms=NOW_MS)
            found = await keys.key_of_certificate(both)
            assert found is not None
            assert found.name == "by-name"
            await put(keys, declared("a-name", 5, certificate="uri:z", kind=proof))
            found = await keys.key_of_certificate(both | {"uri:z"})
            assert found is not None
            assert found.name == "a-name", "the name of the key decides, not the one of the certificate"
            assert await keys.key_of_certificate(frozenset({"dns:other"})) is None

    asyncio.run(story())


@pytest.mark.parametrize("change", [{"role": Role.VIEWER}, {"expires_at_ms": NOW_MS + 5}])
def test_the_last_admin_without_an_end_stays(new_tables: NewTables, change: dict[str, object]) -> None:
    async def story() -> None:
        async with new_tables() as t:
            keys = catalog(t)
            await put(keys, declared("root", 1, Role.ADMIN))
            await put(keys, declared("brief", 2, Role.ADMIN, expires_at_ms=NOW_MS + 9))
            with pytest.raises(LastAdmin):
                await put(keys, replace(declared("root", 1, Role.ADMIN), **change))  # type: ignore[arg-type]
            with pytest.raises(LastAdmin):
                await keys.revoke_key("root", actor=ADMIN, now_ms=NOW_MS)
            await put(keys, declared("second", 3, Role.ADMIN))
            await put(keys, replace(declared("root", 1, Role.ADMIN), **change))  # type: ignore[arg-type]

    asyncio.run(story())


def test_admin_valid_longest_stays_if_all_admins_have_an_end(new_tables: NewTables) -> None:
    def until(name: str, number: int, days: int) -> ApiKey:
        return declared(name, number, Role.ADMIN, expires_at_ms=NOW_MS + days)

    async def story() -> None:
        async with new_tables() as t:
            keys = catalog(t)
            for wanted in (until("long", 1, 9), until("short", 2, 5), until("shorter", 3, 4), until("over", 4, 0)):
                await put(keys, wanted)
            await put(keys, declared("viewer", 5))
            for name in ("shorter", "over"):
                await keys.revoke_key(name, actor=ADMIN, now_ms=NOW_MS)
            with pytest.raises(LastAdmin, match="no other key with the role admin is valid as long as 'long'"):
                await keys.revoke_key("long", actor=ADMIN, now_ms=NOW_MS)
            for less in (until("long", 1, 8), declared("long", 1, expires_at_ms=NOW_MS + 9)):
                with pytest.raises(LastAdmin):
                    await put(keys, less)
            await put(keys, replace(until("long", 1, 9), networks=("10.0.0.0/8",)))
            await put(keys, until("short", 2, 10))
            await keys.revoke_key("long", actor=ADMIN, now_ms=NOW_MS)
            with pytest.raises(LastAdmin):
                await keys.revoke_key("short", actor=ADMIN, now_ms=NOW_MS)
            await put(keys, declared("root", 6, Role.ADMIN))
            await keys.revoke_key("short", actor=ADMIN, now_ms=NOW_MS)
            with pytest.raises(LastAdmin, match="'root' is the last key with the role admin that has no end"):
                await keys.revoke_key("root", actor=ADMIN, now_ms=NOW_MS)

    asyncio.run(story())


def test_the_last_use_only_grows(new_tables: NewTables) -> None:
    async def story() -> None:
        async with new_tables() as t:
            keys = catalog(t)
            kept, _ = await put(keys, declared("ci", 1))
            for at_ms in (NOW_MS + 5, NOW_MS + 3):
                await keys.note_uses({kept.key_id: at_ms, "f" * 16: at_ms})
            assert (await keys.key_named("ci")).last_used_at_ms == NOW_MS + 5
            assert (await keys.key_named("ci")).tag == kept.tag

    asyncio.run(story())


def test_masters_share_one_secret(new_tables: NewTables) -> None:
    async def story() -> None:
        async with new_tables() as t:
            made = await asyncio.gather(*(catalog(t).secret("forwarding") for _ in range(6)))
            assert len(set(made)) == 1
            assert len(made[0]) == 32
            assert await catalog(t).secret("another") != made[0]

    asyncio.run(story())
