"""Refuse floods of wrong keys before anything else is done for them."""

from typing import Final

from starlette.types import Receive, Scope, Send

from api.http.authentication import GUARDED, Keyring, key_of, too_many_wrong_keys
from api.http.errors import answer
from api.http.headers import header_of
from api.http.request_context import ALWAYS, HEADER, request_id_of
from api.security.limits import WrongKeys
from api.security.vouching import CLIENT
from shared.ports.clock import Clock

_BELOW: Final = f"{GUARDED}/"
_NO_BODY: Final = b""


class FloodRefusal:
    """Refuses unknown keys from addresses that sent too many wrong ones, outside all layers.

    So such a request costs neither a log line nor a look for its route; `WrongKeys.refused` counts it. `Authentication`
    refuses the others: those that another master forwarded, and those without a key.
    """

    def __init__(self, keyring: Keyring, wrong_keys: WrongKeys, clock: Clock) -> None:
        self._keyring = keyring
        self._wrong_keys = wrong_keys
        self._clock = clock

    def wait_s(self, scope: Scope) -> int:
        """Return the seconds until this request's address may try another key; 0 if the request is to be served."""
        client = scope.get("client")
        if client is None or not scope["path"].startswith(_BELOW):
            return 0
        wait_s = self._wrong_keys.wait_s(client[0], self._clock.elapsed())
        if not wait_s or any(name == CLIENT for name, _ in scope["headers"]):
            return 0
        key = key_of(header_of(scope, b"authorization"))
        return wait_s if key and not self._keyring.has_seen(key) else 0

    async def refuse(self, wait_s: int, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 429."""
        self._wrong_keys.refused += 1
        request_id = request_id_of(scope)
        response = answer(too_many_wrong_keys(wait_s), scope["path"], request_id)
        response.raw_headers += [(HEADER, request_id.encode()), *ALWAYS]
        if scope["method"] == "HEAD":
            response.body = _NO_BODY
        await response(scope, receive, send)
