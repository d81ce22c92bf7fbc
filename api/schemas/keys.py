"""The request and response bodies of API keys."""

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any

from pydantic import Field, Strict, StringConstraints

from api.schemas.model import Model, RequestModel, ZonedMoment, field, ms_of, when
from api.schemas.plans import DeclarationPlan, declaration_plan
from shared.domain.crawl.spec import LABEL, LABEL_WORDS
from shared.domain.ops.access import ApiKey, IdentityKind, Role
from shared.domain.ops.identities import MAX_NETWORKS, certificate_name, network_of

_NETWORK = Annotated[str, StringConstraints(max_length=64)]
_CERTIFICATE = Annotated[str, StringConstraints(min_length=1, max_length=1100)]
_ROLE = "`viewer` reads, `operator` also changes crawls, seeds and hosts, `admin` also manages API keys."
_EXPIRES = "From this time on it is refused with 401. It needs a time zone. Default: it has no end."
_NETWORKS = (
    "Networks in CIDR notation. Requests from other addresses are refused with 403. The address is that of the "
    "connection: behind a proxy, the proxy's. Empty: any address."
)
_BOUND = (
    "A client certificate: `sha256:` and its fingerprint, or `dns:`, `uri:` or `email:` and one of its subject "
    "alternative names. Requests over other connections are refused with 403. It needs masters with "
    "`--tls-client-ca`. Default: none."
)
_KIND = (
    "`key`: the secret proves the identity, together with `certificate` if one is given. `certificate`: the client "
    "certificate alone proves it, and there is no secret."
)


class KeySpec(RequestModel):
    """The declaration of an API key: its role, and when and from where it is accepted."""

    role: Annotated[Role, Strict(False)] = field(_ROLE)
    kind: Annotated[IdentityKind, Strict(False)] = Field(IdentityKind.KEY, description=_KIND)
    expires_at: ZonedMoment | None = Field(None, description=_EXPIRES, examples=["2030-06-01T00:00:00Z"])
    networks: list[_NETWORK] = Field([], max_length=MAX_NETWORKS, description=_NETWORKS, examples=[["10.1.0.0/16"]])
    certificate: _CERTIFICATE | None = Field(None, description=_BOUND, examples=["dns:terraform.example.org"])

    def bounds(self) -> dict[str, Any]:
        """Return the expiry time, networks and certificate of the key as keyword arguments of ApiKey."""
        return {
            "expires_at_ms": None if self.expires_at is None else ms_of(self.expires_at),
            "networks": tuple(dict.fromkeys(network_of(network) for network in self.networks)),
            "certificate": None if self.certificate is None else certificate_name(self.certificate),
        }


class KeyInput(KeySpec):
    """The body of a request that creates an API key."""

    name: Annotated[str, StringConstraints(pattern=LABEL)] = field(
        f"The name of the key: {LABEL_WORDS}. It appears in the audit log.", "terraform"
    )


class KeyBounds(Model):
    """What an API key may do, and when and from where it is accepted.

    A field that was left out of the declaration has its default. Networks and the certificate are in canonical form.
    """

    role: Role = field("What it may do.")
    kind: IdentityKind = field(_KIND)
    expires_at: datetime | None = field(_EXPIRES, "2030-06-01T00:00:00Z")
    networks: list[str] = field(_NETWORKS, ["10.1.0.0/16"])
    certificate: str | None = field(_BOUND, "dns:terraform.example.org")


class KeyView(Model):
    """An API key. If its kind is `certificate`, a client certificate replaces the secret."""

    name: str = field("Its name. At most one key that is not revoked has it.", "terraform")
    id: str = field("Its id. It stays the same until the key is revoked.", "5f3c0a2b9d1e4f67")
    spec: dict[str, Any] = field("The declaration, exactly as it was sent.", {"role": "operator"})
    effective: KeyBounds = field("The declaration with all defaults, in canonical form.")
    key: str | None = field(
        "The secret. Send it as `Authorization: Bearer <key>`. Only the answer that creates the key has it. Null "
        "otherwise, and for a certificate.",
        "orb_5f3c0a2b9d1e4f67_kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk",
    )
    created_at: datetime = field("When it was created.", "2030-01-01T08:00:00Z")
    created_by: str = field("The name and id of the API key that created it.", "first-admin (76f4e1d9b2a0c3f5)")
    last_used_at: datetime | None = field(
        "When it was last accepted, late by up to a minute. Null if it was never used.", "2030-01-02T11:00:00Z"
    )
    revoked_at: datetime | None = field("When it was revoked. Null if it is valid.", "2030-01-01T08:12:30Z")


def key_body(key: ApiKey, secret: str | None = None) -> KeyView:
    """Return an API key as the API shows it. `secret`: the key itself if it has just been created, else None."""
    bounds = _effective(key.role, key.kind, key.expires_at_ms, key.networks, key.certificate)
    spec = bounds.model_dump(mode="json") if key.spec is None else json.loads(key.spec)
    return KeyView.of(key, id=key.key_id, spec=spec, effective=bounds, key=secret)


def key_plan(stored: ApiKey | None, wanted: KeySpec) -> DeclarationPlan:
    """Return what a PUT of `wanted` would change. `stored` is the present key, None if it does not exist."""
    after = _effective(wanted.role, wanted.kind, **wanted.bounds())
    before = None if stored is None else key_body(stored).effective.model_dump(mode="json")
    return declaration_plan(before, after.model_dump(mode="json"))


def _effective(
    role: Role, kind: IdentityKind, expires_at_ms: int | None, networks: Sequence[str], certificate: str | None
) -> KeyBounds:
    return KeyBounds(
        role=role, kind=kind, expires_at=when(expires_at_ms), networks=list(networks), certificate=certificate
    )
