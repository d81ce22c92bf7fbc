"""Refuse requests with a wrong API key before the other layers work on them."""

from typing import Final

import structlog
from starlette.types import ASGIApp, Receive, Scope, Send

from api.http.authentication import GUARDED, Keyring, key_of, too_many_wrong_keys, unknown_key
from api.http.errors import ApiProblem, answer
from api.http.headers import header_of
from api.http.request_context import ALWAYS, HEADER, request_id_of
from api.security.limits import WrongKeys
from api.security.vouching import CLIENT
from shared.ports.clock import Clock

log = structlog.get_logger("orb.api")

_BELOW: Final = f"{GUARDED}/"


class WrongKeyRefusal:
    """ASGI layer that refuses requests with a wrong API key before the layers that measure, log and read requests.

    A key that this master has not accepted lately is checked. If it is wrong, it is counted for the address that sent
    it, and logged in a short line. `Authentication`, a later layer, decides on requests without a key and on requests
    that another master forwarded.
    """

    def __init__(self, app: ASGIApp, keyring: Keyring, wrong_keys: WrongKeys, clock: Clock) -> None:
        self._app = app
        self._keyring = keyring
        self._wrong_keys = wrong_keys
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].startswith(_BELOW):
            request_id = request_id_of(scope)
            problem = await self._problem(scope, request_id)
            if problem is not None:
                response = answer(problem, scope["path"], request_id)
                response.raw_headers += [(HEADER, request_id.encode()), *ALWAYS]
                await response(scope, receive, send)
                return
        await self._app(scope, receive, send)

    async def _problem(self, scope: Scope, request_id: str) -> ApiProblem | None:
        """Return the problem with which this request is refused. None: the request goes on to the next layer.

        The first rule that fits decides:

        - This master accepted the key lately: None.
        - The request has no key or no client address, or another master forwarded it: None.
        - The address sent too many wrong keys: a problem. The key is not checked, so a valid key is refused, too.
        - The key is valid, or the database does not answer: None.
        - The key is wrong: a problem. The wrong key is counted for the address.

        None is no permission: `Authentication`, a later layer, checks the request as well.
        """
        client, key = scope.get("client"), key_of(header_of(scope, b"authorization"))
        if not key or client is None or self._keyring.has_seen(key):
            return None
        if any(name == CLIENT for name, _ in scope["headers"]):
            return None
        address, now = client[0], self._clock.elapsed()
        wait_s = self._wrong_keys.wait_s(address, now)
        if wait_s:
            self._wrong_keys.limited += 1
            return too_many_wrong_keys(wait_s)
        try:
            holder = await self._keyring.holder(key)
        except Exception:
            return None  # the inner layers look the key up again, and answer and log what fails there
        if holder is not None:
            return None
        self._wrong_keys.count(address, now)
        log.info("wrong_key.refused", address=address, path=scope["path"], request=request_id)
        return unknown_key()
