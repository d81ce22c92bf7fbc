"""The request and response bodies of API keys."""

import json
from datetime import datetime
from typing import Annotated, Any

from pydantic import AfterValidator, Field, Strict, StringConstraints

from api.schemas.model import ONE_LINE, Model, Moment, RequestModel, field, ms_of, when
from shared.domain.ops.access import ApiKey, IdentityKind, Role
from shared.domain.ops.identities import MAX_NETWORKS, certificate_name, network_of

_NETWORK = Annotated[str, StringConstraints(max_length=64), AfterValidator(lambda text: network_of(text) and text)]
_CERTIFICATE = Annotated[
    str, StringConstraints(min_length=1, max_length=1100), AfterValidator(lambda text: certificate_name(text) and text)
]
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


def _with_zone(moment: datetime) -> datetime:
    if moment.tzinfo is None:
        raise ValueError("needs a time zone, as Z in 2030-06-01T00:00:00Z")
    return moment


class _Bounds(RequestModel):
    """When and from where an identity is accepted."""

    expires_at: Annotated[Moment, AfterValidator(_with_zone)] | None = Field(
        None, description=_EXPIRES, examples=["2030-06-01T00:00:00Z"]
    )
    networks: list[_NETWORK] = Field([], max_length=MAX_NETWORKS, description=_NETWORKS, examples=[["10.1.0.0/16"]])
    certificate: _CERTIFICATE | None = Field(None, description=_BOUND, examples=["dns:terraform.example.org"])

    def bounds(self) -> dict[str, Any]:
        """Return the fields of an ApiKey, in canonical form."""
        return {
            "expires_at_ms": None if self.expires_at is None else ms_of(self.expires_at),
            "networks": tuple(dict.fromkeys(network_of(network) for network in self.networks)),
            "certificate": None if self.certificate is None else certificate_name(self.certificate),
        }


class KeyInput(_Bounds):
    """An API key to create."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=128, pattern=ONE_LINE)] = field(
        "A name for the user of the key. It appears in the audit log.", "terraform"
    )
    role: Annotated[Role, Strict(False)] = field(_ROLE)


class KeySpec(_Bounds):
    """The declaration of an identity."""

    role: Annotated[Role, Strict(False)] = field(_ROLE)
    kind: Annotated[IdentityKind, Strict(False)] = Field(IdentityKind.KEY, description=_KIND)


class IssuedKey(Model):
    """A new API key. It is shown only once."""

    id: str = field("The key's id.", "5f3c0a2b9d1e4f67")
    name: str = field("The name of the key's user.", "terraform")
    role: Role = field("What the key may do.")
    key: str = field(
        "The key itself. Send it as `Authorization: Bearer <key>`. It is shown only once.",
        "orb_5f3c0a2b9d1e4f67_kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk",
    )
    created_at: datetime = field("When the key was created.", "2030-01-01T08:00:00Z")


class KeyBounds(Model):
    """When and from where an identity is accepted, in canonical form, with all defaults."""

    role: Role = field("What it may do.")
    kind: IdentityKind = field(_KIND)
    expires_at: datetime | None = field(_EXPIRES, "2030-06-01T00:00:00Z")
    networks: list[str] = field(_NETWORKS, ["10.1.0.0/16"])
    certificate: str | None = field(_BOUND, "dns:terraform.example.org")


class KeyView(KeyBounds):
    """An API key, without the key itself."""

    id: str = field("The key's id.", "5f3c0a2b9d1e4f67")
    name: str = field("The name of the key's user.", "terraform")
    declared: bool = field("True if it is declared under `/v1/keys/{name}`.", False)
    created_at: datetime = field("When the key was created.", "2030-01-01T08:00:00Z")
    created_by: str = field("The name and id of the API key that created it.", "first admin (76f4e1d9b2a0c3f5)")
    last_used_at: datetime | None = field(
        "When it was last accepted, late by up to a minute. Null if it was never used.", "2030-01-02T11:00:00Z"
    )
    revoked_at: datetime | None = field("When the key was revoked. Null if it is valid.", "2030-01-01T08:12:30Z")


class DeclaredKey(Model):
    """A declared identity."""

    name: str = field("Its name.", "terraform")
    id: str = field("Its id. It stays the same until the key is deleted.", "5f3c0a2b9d1e4f67")
    spec: dict[str, Any] = field("The declaration, exactly as it was put.", {"role": "operator"})
    effective: KeyBounds = field("The declaration with all defaults, in canonical form.")
    key: str | None = field(
        "The key itself. Only the answer that creates it has it. Null otherwise, and for a certificate.",
        "orb_5f3c0a2b9d1e4f67_kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk",
    )
    created_at: datetime = field("When it was created.", "2030-01-01T08:00:00Z")
    created_by: str = field("The name and id of the API key that created it.", "first admin (76f4e1d9b2a0c3f5)")
    last_used_at: datetime | None = field(
        "When it was last accepted, late by up to a minute. Null if it was never used.", "2030-01-02T11:00:00Z"
    )


def key_body(key: ApiKey) -> KeyView:
    """Return an API key, without the key itself, as the API shows it."""
    return KeyView.of(key, id=key.key_id, networks=list(key.networks), declared=key.spec is not None)


def declared_body(key: ApiKey, secret: str | None = None) -> DeclaredKey:
    """Return a declared identity as the API shows it, with its secret where it is new."""
    bounds = KeyBounds(
        role=key.role,
        kind=key.kind,
        expires_at=when(key.expires_at_ms),
        networks=list(key.networks),
        certificate=key.certificate,
    )
    return DeclaredKey.of(key, id=key.key_id, spec=json.loads(key.spec or "{}"), effective=bounds, key=secret)
