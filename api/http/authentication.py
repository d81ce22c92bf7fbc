"""Authenticate requests by bearer keys. Everything below /v1 needs a key; each route declares the role it needs."""

import base64
import binascii
import time
from collections import OrderedDict
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from api.http.errors import ApiProblem, ProblemKind, answer, problem_of
from api.http.headers import header_of
from shared.domain.errors import Transient
from shared.domain.ops.access import ApiKey, Role, digest_of, key_id_of, new_key, opens
from shared.ports.catalog import Catalog

_CACHED_S: Final = 1.0
_CACHED: Final = 1024
_SEND: Final = "send the header `Authorization: Bearer <API key>`"
_KEYS: Final = (
    "a key is shown once, when it is made: the first at the cluster's first start, others by `orb ctl keys create` or "
    "POST /v1/api-keys; `orb key create` replaces a lost admin key, on the cluster's database itself"
)
_CHALLENGE: Final = {"WWW-Authenticate": 'Bearer realm="orbweaver"'}


class Keyring:
    """Verifies API keys, and caches each valid key for a second.

    So a revoked key may work for another second on masters other than the one that revoked it.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._good: OrderedDict[bytes, tuple[float, ApiKey]] = OrderedDict()

    def __repr__(self) -> str:
        return f"<Keyring cached={len(self._good)}>"

    async def holder(self, key: str) -> ApiKey | None:
        """Return the record (name and role) of an API key; None if the key is unknown or revoked."""
        key_id = key_id_of(key)
        if key_id is None:
            return None
        digest, now = digest_of(key), time.monotonic()
        known = self._good.get(digest)
        if known is not None and now - known[0] < _CACHED_S:
            return known[1]
        kept = await self._catalog.key(key_id)
        if kept is None or not opens(key, kept):
            self._good.pop(digest, None)
            return None
        self._good[digest] = (now, kept)
        if len(self._good) > _CACHED:
            self._good.popitem(last=False)
        return kept

    def forget(self, key_id: str) -> None:
        """Drop a revoked key from the cache, so that this master refuses it at once."""
        self._good = OrderedDict((digest, known) for digest, known in self._good.items() if known[1].key_id != key_id)


class Authentication:
    """Layer: refuses requests below the path `guarded` that have no valid API key.

    It puts the key's record into the request's state.
    """

    def __init__(self, app: ASGIApp, keyring: Keyring, guarded: str = "/v1") -> None:
        self._app = app
        self._keyring = keyring
        self._guarded = guarded

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (scope["path"] + "/").startswith(self._guarded + "/"):
            problem = await self._judge(scope)
            if problem is not None:
                await answer(problem, scope["path"], scope["state"]["request_id"])(scope, receive, send)
                return
        await self._app(scope, receive, send)

    async def _judge(self, scope: Scope) -> ApiProblem | None:
        given = header_of(scope, b"authorization").decode("latin-1")
        scheme, _, key = given.partition(" ")
        if scheme.lower() == "basic":
            key = _password_of(key)
        if scheme.lower() not in ("bearer", "basic") or not key:
            hint = f"{_SEND}; {_KEYS}"
            return ApiProblem(ProblemKind.UNAUTHENTICATED, "the request has no API key", hint=hint, headers=_CHALLENGE)
        try:
            holder = await self._keyring.holder(key.strip())
        except Transient as error:
            return problem_of(error)
        if holder is None:
            detail = "the API key is not known, or was revoked"
            return ApiProblem(ProblemKind.UNAUTHENTICATED, detail, hint=_KEYS, headers=_CHALLENGE)
        scope["state"]["key"] = holder
        return None


def _password_of(credentials: str) -> str:
    """Return the password in the credentials of Basic authentication (RFC 7617); "" if they are malformed.

    Tools that take only a URL, such as pywb, send the key so: `http://key:orb_...@master:8081/`.
    """
    try:
        return base64.b64decode(credentials.strip(), validate=True).decode().partition(":")[2]
    except (binascii.Error, UnicodeDecodeError):
        return ""


def first_key(now_ms: int) -> tuple[ApiKey, str]:
    """Return a new admin key for a cluster without keys: the record to store, and the key to show."""
    key_id, key = new_key()
    return ApiKey(key_id, "first admin", Role.ADMIN, digest_of(key), now_ms, "first start"), key
