"""A thin client of the REST API: one request at a time, at whichever master of the cluster answers.

What is repeated is one table (`waits`): a request that reached nobody goes to the next master; one that was refused for
now (429) is sent again when the server said; one whose fate is unknown (no answer, 502, 503, 504) only if repeating it
cannot do it twice.
"""

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final, assert_never
from urllib.parse import quote

import httpx
import msgspec

from cli.ctl.contexts import Access
from cli.ctl.problems import ANOTHER, Problem, Refusal, told
from cli.exits import Environment, Failed, Usage
from shared.domain.crawl import LABEL_WORDS
from shared.domain.errors import Unusable
from shared.domain.software import VERSION
from shared.tls import client_context

PATIENCE_S: Final = 30.0
"""How long a request is tried, in all, before the command gives up."""

CONNECT_S: Final = 5.0
ANSWER_S: Final = 15.0
"""A master that is silent for longer is taken for stopped; what it passes on to the leader takes ten at most."""

PAGE: Final = 500
_FIRST_WAIT_S: Final = 0.25
_LONGEST_WAIT_S: Final = 4.0

Query = Mapping[str, str | int | Sequence[str] | None]


class Trouble(Enum):
    """Why an attempt came to nothing, as far as repeating goes."""

    REFUSED = auto()
    """It was not carried out, and may be later."""
    UNSURE = auto()
    """It may have been carried out."""


def waits(trouble: Trouble, *, repeatable: bool, attempt: int, asked_s: float | None, left_s: float) -> float | None:
    """Seconds to wait before attempt number `attempt` + 1; None to give up.

    `asked_s` is what the server asked for; it counts even where it is longer than we would wait by ourselves.
    """
    match trouble:
        case Trouble.REFUSED:
            pass
        case Trouble.UNSURE:
            if not repeatable:
                return None
        case _:
            assert_never(trouble)
    own = min(_LONGEST_WAIT_S, _FIRST_WAIT_S * 2.0 ** (attempt - 1))
    wait = own if asked_s is None else asked_s
    return wait if wait <= left_s else None


@dataclass(frozen=True, slots=True)
class Answer:
    """What a master answered. `unsure`: an earlier attempt at it had no answer, and may have been carried out."""

    status: int
    body: Any
    etag: str | None = None
    unsure: bool = False


def path(*parts: str) -> str:
    """`/v1/` and the parts, each quoted. Usage as `segment`."""
    kinds = ("", *parts)
    return "/v1/" + "/".join(segment(part, kind.removesuffix("s")) for kind, part in zip(kinds, parts, strict=False))


def segment(name: str, kind: str = "") -> str:
    """The name of a thing, quoted for a path. Usage where it would be another path: none has such a name."""
    if "/" in name or name in ("", ".", ".."):
        rule = LABEL_WORDS if kind == "crawl" else "no empty text, has no slash, and is neither . nor .."
        raise Usage(f"nothing can be called {name!r}: the name of a {kind or 'thing'} is {rule}.")
    return quote(name, safe="")


class Client:
    """Asks the masters of one cluster. Raises Refusal where one refuses, Environment where none answers."""

    def __init__(
        self,
        access: Access,
        *,
        patience_s: float = PATIENCE_S,
        note: Callable[[str], None] = lambda line: None,
        transport: httpx.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._servers = access.servers
        self._certified = access.tls is not None and access.tls.cert is not None
        self._at = 0
        self.patience_s = patience_s
        self._note, self.sleep, self.now = note, sleep, now
        headers = {"User-Agent": f"orb-ctl/{VERSION}", "Accept": "application/json, */*;q=0.5"}
        if access.key is not None:
            headers["Authorization"] = f"Bearer {access.key}"
        try:
            self._http = httpx.Client(
                headers=headers,
                verify=True if access.tls is None else client_context(access.tls),
                timeout=httpx.Timeout(ANSWER_S, connect=CONNECT_S),
                transport=transport,
                mounts=None if transport is not None else dict.fromkeys(_LOOPBACK),  # no proxy leads to ourselves
            )
        except (UnicodeEncodeError, ValueError, Unusable) as error:
            raise Environment(f"cannot make requests: {error}") from error

    def __repr__(self) -> str:
        return f"<Client of {self.server}>"

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *ended: object) -> None:
        self._http.close()

    @property
    def server(self) -> str:
        """The master that is asked next."""
        return self._servers[self._at]

    def get(self, at: str, query: Query | None = None) -> Answer:
        """A resource."""
        return self.ask("GET", at, query=query)

    def ask(
        self,
        method: str,
        at: str,
        *,
        query: Query | None = None,
        body: object = None,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        repeatable: bool = True,
        given_back: Collection[int] = (),
        answer_s: float = ANSWER_S,
    ) -> Answer:
        """Do one request until it is answered. `repeatable` is false where carrying it out twice would do harm;
        `given_back` are statuses whose Refusal the caller wants at once, where repeating is its own business."""
        sent = dict(headers or {})
        if body is not None:
            content = msgspec.json.encode(body)
            sent["Content-Type"] = "application/json"
        wanted = _Wanted(method, at, query, content, sent, repeatable, frozenset(given_back), answer_s)
        with self._answered(wanted) as (response, unsure):
            data: Any = None
            if response.content:
                try:
                    data = msgspec.json.decode(response.content)
                except (msgspec.DecodeError, UnicodeDecodeError):
                    raise Environment(
                        f"{self.server} did not answer with JSON: that is no Orbweaver API; {ANOTHER}."
                    ) from None
            return Answer(response.status_code, data, response.headers.get("etag"), unsure)

    def items(self, at: str, query: Query | None = None, *, limit: int | None = None) -> Iterator[dict[str, Any]]:
        """The entries of a list, page by page; at most `limit`."""
        left, cursor = limit, None
        while left is None or left > 0:
            most = PAGE if left is None else min(PAGE, left)
            page = self.get(at, {**(query or {}), "limit": most, "cursor": cursor}).body
            if not isinstance(page, dict) or not isinstance(page.get("items"), list):
                raise Environment(f"{self.server} did not answer with a list: that is no Orbweaver API; {ANOTHER}.")
            yield from page["items"][:left]
            left = None if left is None else left - len(page["items"])
            cursor = page.get("next")
            if cursor is None:
                return

    @contextmanager
    def stream(
        self,
        at: str,
        query: Query | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        answer_s: float = ANSWER_S,
    ) -> Iterator[httpx.Response]:
        """An answer to be read piece by piece; errors of the connection in the block are httpx's own."""
        wanted = _Wanted("GET", at, query, None, headers or {}, True, frozenset(), answer_s, whole=False)
        with self._answered(wanted) as (response, _):
            yield response

    @contextmanager
    def _answered(self, wanted: "_Wanted") -> Iterator[tuple[httpx.Response, bool]]:
        """An answer below 400, and whether an earlier attempt may have been carried out."""
        until = self.now() + self.patience_s
        unreachable: dict[str, str] = {}
        unsure, attempt = False, 0
        while True:
            attempt += 1
            try:
                response = self._http.send(self._request(wanted), stream=True)
                if wanted.whole or response.status_code >= 400:
                    response.read()
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                unreachable[self.server] = _unreached(self.server, error)
                if len(unreachable) == len(self._servers):
                    raise _nobody({server: unreachable[server] for server in self._servers}, unsure=unsure) from error
                self._turn()
                attempt -= 1
                continue
            except httpx.RequestError as error:
                unsure = True
                wait = self._wait(Trouble.UNSURE, wanted.repeatable, attempt, None, until)
                if wait is None:
                    raise _silent(self.server, error, wanted.method, certified=self._certified) from error
                self._turn()
                self.sleep(wait)
                continue
            unreachable.pop(self.server, None)
            if response.is_redirect:
                response.close()
                raise Environment(
                    f"{self.server} redirects to {response.headers['location']}: name that as the server."
                )
            if response.status_code < 400:
                break
            problem = told(response.status_code, response.headers, response.content, time.time())
            unsure = self._after(problem, wanted, attempt, until, unsure)
        try:
            yield response, unsure
        finally:
            response.close()

    def _after(self, problem: Problem, wanted: "_Wanted", attempt: int, until: float, unsure: bool) -> bool:
        """Wait until the request may be repeated, at the next master where this one cannot; whether its fate is unknown
        by now. Refusal when it is no use."""
        match problem.status:
            case 429:
                trouble = Trouble.REFUSED
            case 502 | 503 | 504:
                trouble, unsure = Trouble.UNSURE, True
                self._turn()
            case _:
                raise Refusal(problem, unsure=unsure)
        wait = self._wait(trouble, wanted.repeatable, attempt, problem.retry_after_s, until)
        if wait is None or problem.status in wanted.given_back:
            raise Refusal(problem, unsure=unsure)
        if attempt == 1:
            self._note(f"{problem.detail}; trying again for up to {self.patience_s:g} s")
        self.sleep(wait)
        return unsure

    def _wait(
        self, trouble: Trouble, repeatable: bool, attempt: int, asked_s: float | None, until: float
    ) -> float | None:
        left_s = until - self.now()
        return waits(trouble, repeatable=repeatable, attempt=attempt, asked_s=asked_s, left_s=left_s)

    def _turn(self) -> None:
        """Ask the next master from now on."""
        self._at = (self._at + 1) % len(self._servers)

    def _request(self, wanted: "_Wanted") -> httpx.Request:
        params: list[tuple[str, str | int | float | bool | None]] = []
        for name, value in (wanted.query or {}).items():
            several = value if isinstance(value, (list, tuple)) else (value,)
            params += [(name, each) for each in several if each is not None]
        return self._http.build_request(
            wanted.method,
            self.server + wanted.at,
            params=params or None,
            content=wanted.content,
            headers=wanted.headers,
            timeout=httpx.Timeout(wanted.answer_s, connect=CONNECT_S),
        )


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A request, before it is known whom it goes to. `whole`: the answer's body is read before it is judged."""

    method: str
    at: str
    query: Query | None
    content: bytes | None
    headers: Mapping[str, str]
    repeatable: bool
    given_back: frozenset[int]
    answer_s: float
    whole: bool = True


def _nobody(unreachable: Mapping[str, str], *, unsure: bool) -> Environment:
    if len(unreachable) == 1 and not unsure:
        server, why = next(iter(unreachable.items()))
        if why.startswith(_SPEAKS_HTTP):
            return Environment(f"{server} {why}.")
    said = "; ".join(f"{server} ({why})" for server, why in unreachable.items())
    more = " An earlier attempt may have been carried out." if unsure else ""
    return Environment(f"no master answers at {said}: is `orb up` running? {ANOTHER}.{more}")


def _unreached(server: str, error: Exception) -> str:
    """Why there is no connection."""
    why = str(error)
    if server.startswith("https:") and any(sign in why for sign in _NO_TLS):
        return f"{_SPEAKS_HTTP}: use http{server.removeprefix('https')}"
    return why or "it does not answer"


def _silent(server: str, error: Exception, method: str, *, certified: bool) -> Exception:
    why = str(error) or type(error).__name__
    if server.startswith("https:") and not certified:
        why += "; does it demand a certificate? --tls-cert and --tls-key name ours"
    if method in ("GET", "HEAD"):
        return Environment(f"{server} broke off ({why}).")
    return Failed(f"{server} broke off ({why}): it may have been done, or not; look before you repeat it.")


_NO_TLS: Final = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE")
"""What OpenSSL, by its version, calls an answer that is none of TLS."""

_SPEAKS_HTTP: Final = "speaks http, not https"

_LOOPBACK: Final = ("all://127.0.0.1", "all://localhost", "all://[::1]")
