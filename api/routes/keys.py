"""/v1/api-keys: create, list and revoke API keys."""

from datetime import datetime
from typing import Annotated

from fastapi import Path, Query, Response

from api.http.deps import CONDITIONAL, UNCHANGED, By, Expected, Idempotent, Page, Served, etag, problems
from api.http.errors import ProblemKind
from api.http.routing import Router
from api.schemas.keys import IssuedKey, KeyInput, KeyView, key_body
from api.schemas.model import KEY_ID, Listing, moment_of
from shared.domain.ops.access import ApiKey, digest_of, new_key
from shared.ports.catalog import Missing

router = Router(prefix="/v1/api-keys", tags=["api-keys"])

KeyId = Annotated[str, Path(pattern=KEY_ID, description="The `id` of the key, not the key itself.")]


Revoked = Annotated[bool, Query(description="True: include revoked keys.")]


@router.post("", status_code=201, summary="Create a key", responses=problems(409))
async def create_key(wanted: KeyInput, served: Served, by: By, repeatable: Idempotent, response: Response) -> IssuedKey:
    """Create an API key and return it.

    It is shown only once, since only its hash is stored. A repeat with the same Idempotency-Key is refused.
    """
    key_id, key = new_key()
    kept = ApiKey(key_id, wanted.name, wanted.role, digest_of(key), served.clock.unix_ms(), str(by))
    await served.catalog.add_key(kept, actor=by, repeatable=repeatable)
    response.headers.update(etag(kept.tag) | {"Location": f"/v1/api-keys/{key_id}"})
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
    response.headers.update(etag(stored.tag))
    return key_body(stored)


@router.delete("/{key_id}", summary="Revoke a key", responses=problems(404, ProblemKind.LAST_ADMIN, 412))
async def revoke_key(key_id: KeyId, served: Served, by: By, expected: Expected, response: Response) -> KeyView:
    """Revoke an API key.

    It stops working within a second on every master. Repeats are harmless. The last valid admin key is refused: create
    another one first.
    """
    revoked = await served.catalog.revoke_key(key_id, actor=by, now_ms=served.clock.unix_ms(), expected=expected)
    served.keyring.forget(key_id)
    response.headers.update(etag(revoked.tag))
    return key_body(revoked)
