"""/v1/api-keys: API keys, and client certificates that are accepted without a key, declared by name."""

import json
from collections.abc import Iterator
from typing import Annotated

from fastapi import Path, Query, Request, Response

from api.http.deps import (
    CONDITIONAL,
    UNCHANGED,
    By,
    Expected,
    Idempotent,
    IfMatch,
    OnlyNew,
    Page,
    Served,
    check_conditions,
    etag,
    problems,
)
from api.http.errors import ApiProblem, ProblemKind
from api.http.fields import FieldError
from api.http.routing import Router
from api.schemas.crawls import NAME
from api.schemas.keys import KeyInput, KeySpec, KeyView, key_body, key_plan
from api.schemas.model import Listing
from api.schemas.plans import DeclarationPlan
from shared.domain.ops.access import ApiKey, IdentityKind, digest_of, new_key
from shared.domain.ops.identities import certificate_name, network_of
from shared.domain.reads.declared import Actor
from shared.ports.catalog import Missing, NoSecret

router = Router(prefix="/v1/api-keys", tags=["api-keys"])

KeyName = Annotated[str, Path(pattern=NAME, description="The name of the key.", examples=["terraform"])]


@router.post("", status_code=201, summary="Create a key", responses=problems(ProblemKind.EXISTS))
async def create_key(
    wanted: KeyInput, request: Request, served: Served, by: By, repeatable: Idempotent, response: Response
) -> KeyView:
    """Create an API key and return it with its secret.

    The secret is shown only in this response, because only its hash is stored. The request is refused if a key with
    this name exists. A repeated request with the same Idempotency-Key is refused, too.
    """
    made, secret = await _declared(wanted.name, wanted, request, served, by)
    await served.catalog.add_key(made, actor=by, repeatable=repeatable)
    response.headers.update(etag(made.shown_tag) | {"Location": f"/v1/api-keys/{made.name}"})
    return key_body(made, secret)


@router.get("", summary="List keys")
async def list_keys(
    served: Served,
    page: Page,
    response: Response,
    revoked: Annotated[bool, Query(description="True: include revoked keys.")] = False,
) -> Listing[KeyView]:
    """List API keys by name, without their secrets. Revoked keys are included only if `revoked` is true."""
    after = page.place(tuple[str, str], ("", ""))
    rows = await served.catalog.keys(after=after, max_count=page.max_count + 1, revoked=revoked)
    shown = rows[: page.max_count]
    place = (shown[-1].name, shown[-1].key_id) if len(rows) > page.max_count else None
    return Listing(items=[key_body(key) for key in shown], next=page.next(place, response))


@router.get("/{key_name}", summary="Get a key", dependencies=[CONDITIONAL], responses={**UNCHANGED, **problems(404)})
async def get_key(key_name: KeyName, served: Served, response: Response) -> KeyView:
    """Return a key: what was declared, and the values in effect. The secret is not included."""
    stored = await served.catalog.key_named(key_name)
    response.headers.update(etag(stored.shown_tag))
    return key_body(stored)


@router.put(
    "/{key_name}", summary="Create or replace a key",
    responses={
        201: {"model": KeyView, "description": "It was created. `key` is the secret, unless a certificate proves it."},
        **problems(404, ProblemKind.EXISTS, ProblemKind.LAST_ADMIN, 412),
    },
)  # fmt: skip
async def put_key(
    key_name: KeyName,
    wanted: KeySpec,
    request: Request,
    served: Served,
    by: By,
    expected: IfMatch,
    new: OnlyNew,
    response: Response,
) -> KeyView:
    """Create the key, or replace its role and restrictions.

    An existing key keeps its id and its secret. Only the response that creates the key contains the secret. If that
    response was lost, delete the key and put it again. A certificate has no secret, so it cannot be changed into a key:
    delete it and put it again. If nothing differs, nothing changes. All masters apply a change within a second.
    """
    made, secret = await _declared(key_name, wanted, request, served, by)
    check_conditions(new, expected)
    stored, created = await served.catalog.put_key(
        made, expected=expected, new=new, actor=by, now_ms=made.created_at_ms
    )
    served.keyring.forget(stored.key_id)
    response.status_code = 201 if created else 200
    response.headers.update(etag(stored.shown_tag) | ({"Location": f"/v1/api-keys/{key_name}"} if created else {}))
    return key_body(stored, secret if created else None)


@router.post("/{key_name}/plan", summary="Plan a change of a key")
async def plan_key(key_name: KeyName, wanted: KeySpec, served: Served) -> DeclarationPlan:
    """Return what a PUT of the key would change, without changing anything. The request is validated as for a PUT.

    The declarations are compared in canonical form, with all defaults. No secret is created.
    """
    _check(wanted)
    try:
        stored = await served.catalog.key_named(key_name)
    except Missing:
        stored = None
    if stored is not None and not stored.may_become(wanted.kind):
        raise NoSecret(f"{key_name!r} is a client certificate")
    return key_plan(stored, wanted)


@router.delete("/{key_name}", summary="Revoke a key", responses=problems(404, ProblemKind.LAST_ADMIN, 412))
async def revoke_key(key_name: KeyName, served: Served, by: By, expected: Expected, response: Response) -> KeyView:
    """Revoke a key. Its name can then be used for another key, which has another id and another secret.

    Every master refuses the key within a second. The last admin key that does not expire cannot be revoked: create
    another one first.
    """
    revoked = await served.catalog.revoke_key(key_name, actor=by, now_ms=served.clock.unix_ms(), expected=expected)
    served.keyring.forget(revoked.key_id)
    response.headers.update(etag(revoked.shown_tag))
    return key_body(revoked)


async def _declared(
    name: str, wanted: KeySpec, request: Request, served: Served, by: Actor
) -> tuple[ApiKey, str | None]:
    """Return a new key with this declaration, and its secret. The secret is None for a client certificate.

    Raise ApiProblem if the declaration cannot be used.
    """
    _check(wanted)
    key_id, secret = new_key()
    spec = {field: value for field, value in (await request.json()).items() if field != "name"}
    made = ApiKey(
        key_id, name, wanted.role, digest_of(secret), served.clock.unix_ms(), str(by),
        kind=wanted.kind, spec=json.dumps(spec), **wanted.bounds(),
    )  # fmt: skip
    return made, secret if wanted.kind is IdentityKind.KEY else None


def _check(wanted: KeySpec) -> None:
    """Raise ApiProblem, with all mistakes, if the declaration has at least one of these mistakes:

    - A network is invalid.
    - The certificate is invalid.
    - The kind is `certificate`, and the declaration has no certificate.
    """
    if wrong := list(_mistakes(wanted)):
        raise ApiProblem(ProblemKind.INVALID, "the declaration cannot be used", errors=wrong)


def _mistakes(wanted: KeySpec) -> Iterator[FieldError]:
    """Yield an error for each invalid network of the declaration, and for an invalid or missing certificate."""
    for number, network in enumerate(wanted.networks):
        try:
            network_of(network)
        except ValueError as error:
            yield FieldError(f"networks[{number}]", str(error))
    if wanted.certificate is not None:
        try:
            certificate_name(wanted.certificate)
        except ValueError as error:
            yield FieldError("certificate", str(error))
    elif wanted.kind is IdentityKind.CERTIFICATE:
        yield FieldError("certificate", "kind is certificate, so certificate must name one")
