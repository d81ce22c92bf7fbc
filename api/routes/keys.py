"""/v1/api-keys: create, list and revoke API keys. /v1/keys: declare them, and client certificates, by name."""

import json
from datetime import datetime
from typing import Annotated

from fastapi import Path, Query, Request, Response

from api.http.deps import CONDITIONAL, UNCHANGED, By, Expected, Idempotent, Page, Served, etag, problems
from api.http.errors import ApiProblem, ProblemKind
from api.http.fields import FieldError
from api.http.routing import Router
from api.schemas.crawls import NAME
from api.schemas.keys import DeclaredKey, IssuedKey, KeyInput, KeySpec, KeyView, declared_body, key_body
from api.schemas.model import KEY_ID, Listing, moment_of
from shared.domain.ops.access import ApiKey, IdentityKind, digest_of, new_key
from shared.ports.catalog import Missing

router = Router(prefix="/v1/api-keys", tags=["api-keys"])
declared_router = Router(prefix="/v1/keys", tags=["api-keys"])

KeyName = Annotated[str, Path(pattern=NAME, description="The name of the declared key.", examples=["terraform"])]
KeyId = Annotated[str, Path(pattern=KEY_ID, description="The `id` of the key, not the key itself.")]


Revoked = Annotated[bool, Query(description="True: include revoked keys.")]


@router.post("", status_code=201, summary="Create a key", responses=problems(409))
async def create_key(wanted: KeyInput, served: Served, by: By, repeatable: Idempotent, response: Response) -> IssuedKey:
    """Create an API key and return it.

    It is shown only once, since only its hash is stored. A repeat with the same Idempotency-Key is refused.
    """
    key_id, key = new_key()
    kept = ApiKey(key_id, wanted.name, wanted.role, digest_of(key), served.clock.unix_ms(), str(by), **wanted.bounds())
    await served.catalog.add_key(kept, actor=by, repeatable=repeatable)
    response.headers.update(etag(kept.shown_tag) | {"Location": f"/v1/api-keys/{key_id}"})
    created: datetime = moment_of(kept.created_at_ms)
    return IssuedKey(id=key_id, name=kept.name, role=kept.role, key=key, created_at=created)


@router.get("", summary="List keys")
async def list_keys(served: Served, page: Page, response: Response, revoked: Revoked = False) -> Listing[KeyView]:
    """List API keys, without the keys themselves. Revoked ones are included only if `revoked` is true."""
    rows = await served.catalog.keys(after=page.place(str, ""), max_count=page.max_count + 1, revoked=revoked)
    shown = rows[: page.max_count]
    place = shown[-1].key_id if len(rows) > page.max_count else None
    return Listing(items=[key_body(key) for key in shown], next=page.next(place, response))


@router.get("/{key_id}", summary="Get a key", dependencies=[CONDITIONAL], responses={**UNCHANGED, **problems(404)})
async def get_key(key_id: KeyId, served: Served, response: Response, revoked: Revoked = False) -> KeyView:
    """Return the name, role and times of an API key, without the key itself."""
    stored = await served.catalog.key(key_id)
    if stored is None or (stored.revoked_at_ms is not None and not revoked):
        raise Missing(f"there is no key {key_id!r}")
    response.headers.update(etag(stored.shown_tag))
    return key_body(stored)


@router.delete("/{key_id}", summary="Revoke a key", responses=problems(404, ProblemKind.LAST_ADMIN, 412))
async def revoke_key(key_id: KeyId, served: Served, by: By, expected: Expected, response: Response) -> KeyView:
    """Revoke an API key.

    It stops working within a second on every master. Repeats are harmless. The last valid admin key is refused: create
    another one first.
    """
    revoked = await served.catalog.revoke_key(key_id, actor=by, now_ms=served.clock.unix_ms(), expected=expected)
    served.keyring.forget(key_id)
    response.headers.update(etag(revoked.shown_tag))
    return key_body(revoked)


# --- declared identities ----------------------------------------------------------------------------------------------


@declared_router.get("", summary="List declared keys")
async def list_declared_keys(served: Served, page: Page, response: Response) -> Listing[DeclaredKey]:
    """List declared keys by name, without the keys themselves."""
    rows = await served.catalog.declared_keys(after=page.place(str, ""), max_count=page.max_count + 1)
    shown = rows[: page.max_count]
    place = shown[-1].name if len(rows) > page.max_count else None
    return Listing(items=[declared_body(key) for key in shown], next=page.next(place, response))


@declared_router.get(
    "/{key_name}", summary="Get a declared key", dependencies=[CONDITIONAL], responses={**UNCHANGED, **problems(404)}
)
async def get_declared_key(key_name: KeyName, served: Served, response: Response) -> DeclaredKey:
    """Return a declared key as it was put, and in effect. The key itself is not shown again."""
    stored = await served.catalog.declared_key(key_name)
    response.headers.update(etag(stored.shown_tag))
    return declared_body(stored)


@declared_router.put(
    "/{key_name}", summary="Declare a key",
    responses={
        201: {"model": DeclaredKey, "description": "It was created. `key` is the key, unless a certificate proves it."},
        **problems(404, ProblemKind.EXISTS, ProblemKind.LAST_ADMIN, 412),
    },
)  # fmt: skip
async def put_declared_key(
    key_name: KeyName, wanted: KeySpec, request: Request, served: Served, by: By, expected: Expected, response: Response
) -> DeclaredKey:
    """Create the key, or replace its role and bounds.

    A key that exists keeps its id and its secret. Only the answer that creates it shows the secret; if that answer was
    lost, delete the key and declare it again. If nothing differs, nothing changes. Masters follow within a second.
    """
    if wanted.kind is IdentityKind.CERTIFICATE and wanted.certificate is None:
        wrong = FieldError("certificate", "kind is certificate, so certificate must name one")
        raise ApiProblem(ProblemKind.INVALID, "the declaration cannot be used", errors=[wrong])
    key_id, key = new_key()
    spec, now_ms = json.dumps(await request.json()), served.clock.unix_ms()
    declared = ApiKey(
        key_id, key_name, wanted.role, digest_of(key), now_ms, str(by), kind=wanted.kind, spec=spec, **wanted.bounds()
    )
    stored, created = await served.catalog.put_key(declared, expected=expected, actor=by, now_ms=now_ms)
    served.keyring.forget(stored.key_id)
    response.status_code = 201 if created else 200
    response.headers.update(etag(stored.shown_tag) | ({"Location": f"/v1/keys/{key_name}"} if created else {}))
    return declared_body(stored, key if created and stored.kind is IdentityKind.KEY else None)


@declared_router.delete(
    "/{key_name}", status_code=204, summary="Delete a declared key",
    responses=problems(404, ProblemKind.LAST_ADMIN, 412),
)  # fmt: skip
async def delete_declared_key(key_name: KeyName, served: Served, by: By, expected: Expected) -> None:
    """Revoke a declared key. Its name may be declared again, with another id and another secret.

    It stops working within a second on every master. The last admin key without an end is refused.
    """
    now_ms = served.clock.unix_ms()
    revoked = await served.catalog.delete_declared_key(key_name, expected=expected, actor=by, now_ms=now_ms)
    served.keyring.forget(revoked.key_id)
