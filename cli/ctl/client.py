"""A client of the REST API. It sends one request at a time, to the first master of the cluster that answers.

If no connection to a master can be made, the request goes to the next master. A request that was refused for now (429)
is sent again after the wait that the server sets. A request that may have been applied (no answer, 502, 503, 504) is
sent again only if applying it twice is harmless.
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
from cli.ctl.problems import ANOTHER, ProblemAnswer, Refusal, problem_of
from cli.terminal.exits import Environment, Failed, Usage
from shared.domain.crawl.spec import LABEL_WORDS
from shared.domain.errors import Unusable
from shared.domain.software import VERSION
from shared.domain.web.url import locate, with_scheme
from shared.tls import client_context

PATIENCE_S: Final = 30.0
"""How many seconds a failed request is retried before the command fails."""

CONNECT_S: Final = 5.0
ANSWER_S: Final = 15.0
"""Seconds that a master may be silent before an attempt fails. A request forwarded to the leader takes at most 10 s."""

PAGE: Final = 500
_FIRST_WAIT_S: Final = 0.25
_LONGEST_WAIT_S: Final = 4.0

Query = Mapping[str, str | int | Sequence[str] | None]


class AttemptFailure(Enum):
    """How an attempt to send a request failed. The function `waits` uses it to decide if the request is sent again."""

    REFUSED = auto()
    """The request was not applied; a retry may succeed."""
    UNSURE = auto()
    """The request may have been applied."""


def waits(
    trouble: AttemptFailure, *, repeatable: bool, attempt: int, asked_s: float | None, left_s: float
) -> float | None:
    """Return the seconds to wait before the next attempt, or None to give up.

    - `trouble`: how the attempt failed.
    - `repeatable`: applying the request twice is harmless.
    - `attempt`: the number of the attempt that failed, from 1.
    - `asked_s`: the wait that the server requested. None: it requested none, so the wait doubles with each attempt, up
      to a limit.
    - `left_s`: the time left for retries. If the wait would be longer, the result is None.
    """
    match trouble:
        case AttemptFailure.REFUSED:
            pass
        case AttemptFailure.UNSURE:
            if not repeatable:
                return None
        case _:
            assert_never(trouble)
    own = min(_LONGEST_WAIT_S, _FIRST_WAIT_S * 2.0 ** (attempt - 1))
    wait = own if asked_s is None else asked_s
    return wait if wait <= left_s else None


@dataclass(frozen=True, slots=True)
class ClientResponse:
    """A master's answer with a status below 400, and its body decoded from JSON (None if it is empty).

    `unsure`: an earlier attempt had no definite answer, and may have been applied.
    """

    status: int
    body: Any
    etag: str | None = None
    unsure: bool = False


def path(*parts: str) -> str:
    """Return the API path of the given parts: `/v1/crawls/docs` for `crawls` and `docs`. Each part is quoted.

    Raise Usage for a part that `segment` rejects.
    """
    kinds = ("", *parts)
    named = zip(kinds, parts, strict=False)
    return "/v1/" + "/".join(segment(part, _SINGULAR.get(kind, kind.removesuffix("s"))) for kind, part in named)


_SINGULAR: Final = {"host-policies": "host-policy"}
"""The word for one resource of a list, where it is not the name of the list without its `s`."""


def segment(name: str, kind: str = "") -> str:
    """Return a name quoted as one segment of an API path. Raise Usage if it is empty, `.` or `..`, or contains a slash.

    `kind` names the kind of resource in the message, such as `crawl`.
    """
    if kind in ("host", "host-policy") and "/" in name:
        place = locate(name if "://" in name else with_scheme(name))
        host = "example.org:8080" if place is None else place.host
        raise Usage(f"{name!r} is not a host: write the host without scheme and path, as `{host}`.")
    if "/" in name or name in ("", ".", ".."):
        rule = LABEL_WORDS if kind == "crawl" else "no empty text, has no slash, and is neither . nor .."
        raise Usage(f"{name!r} is not a valid name: the name of a {kind or 'thing'} is {rule}.")
    return quote(name, safe="")


class Client:
    """Sends requests to the masters of a cluster, and repeats a failed request for up to `patience_s` seconds.

    Methods raise Refusal if a master refuses, and Environment if no master answers. They raise Failed if a change may
    have been applied but its answer was lost.
    """

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
                mounts=None if transport is not None else dict.fromkeys(_LOOPBACK),  # no proxy for the loopback address
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
        """The URL of the master that gets the next request."""
        return self._servers[self._at]

    def get(self, at: str, query: Query | None = None) -> ClientResponse:
        """Send a GET for the API path `at` and return the answer."""
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
    ) -> ClientResponse:
        """Send a request, with retries for up to `patience_s` seconds. Return the answer.

        - `at`: the API path.
        - `body`: a value to send as JSON. `content`: bytes to send as they are.
        - `repeatable`: applying the request twice is harmless, so it may be repeated after a lost answer.
        - `given_back`: statuses that raise Refusal at once, because the caller retries by itself.
        - `answer_s`: how many seconds the master may be silent before the attempt fails.
        """
        sent = dict(headers or {})
        if body is not None:
            content = msgspec.json.encode(body)
            sent["Content-Type"] = "application/json"
        request = _Request(method, at, query, content, sent, repeatable, frozenset(given_back), answer_s)
        with self._answered(request) as (response, unsure):
            data: Any = None
            if response.content:
                try:
                    data = msgspec.json.decode(response.content)
                except (msgspec.DecodeError, UnicodeDecodeError):
                    raise Environment(
                        f"{self.server} did not answer with JSON, so it is not an Orbweaver API; {ANOTHER}."
                    ) from None
            return ClientResponse(response.status_code, data, response.headers.get("etag"), unsure)

    def items(
        self,
        at: str,
        query: Query | None = None,
        *,
        limit: int | None = None,
        on_page: Callable[[Mapping[str, Any]], None] = lambda page: None,
    ) -> Iterator[dict[str, Any]]:
        """Yield the entries of the list at the API path `at`, at most `limit` of them (None: all).

        Request the list page by page. Call `on_page` with the body of each page before its entries are yielded.
        """
        left, cursor = limit, None
        while left is None or left > 0:
            max_count = PAGE if left is None else min(PAGE, left)
            page = self.get(at, {**(query or {}), "limit": max_count, "cursor": cursor}).body
            if not isinstance(page, dict) or not isinstance(page.get("items"), list):
                raise Environment(
                    f"{self.server} did not answer with a list, so it is not an Orbweaver API; {ANOTHER}."
                )
            on_page(page)
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
        """Send a GET, with retries until a response begins.

        Yield the response, whose body the caller reads piece by piece. A connection error while the body is read raises
        httpx.RequestError. `answer_s`: how many seconds the master may be silent.
        """
        request = _Request("GET", at, query, None, headers or {}, True, frozenset(), answer_s, whole=False)
        with self._answered(request) as (response, _):
            yield response

    @contextmanager
    def _answered(self, request: "_Request") -> Iterator[tuple[httpx.Response, bool]]:
        """Send the request, with retries. Yield a response with a status below 400, and a flag.

        The flag is True if an earlier attempt may have been applied. Raise Refusal, Environment or Failed as the class
        describes.
        """
        until = self.now() + self.patience_s
        unreachable: dict[str, str] = {}
        unsure, attempt = False, 0
        while True:
            attempt += 1
            try:
                response = self._http.send(self._request(request), stream=True)
                if request.whole or response.status_code >= 400:
                    response.read()
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                unreachable[self.server] = _unreached(self.server, error)
                if len(unreachable) == len(self._servers):
                    raise _unreachable(
                        {server: unreachable[server] for server in self._servers}, unsure=unsure
                    ) from error
                self._turn()
                attempt -= 1
                continue
            except httpx.RequestError as error:
                unsure = True
                wait = self._wait(AttemptFailure.UNSURE, request.repeatable, attempt, None, until)
                if wait is None:
                    raise _silent(self.server, error, request.method, certified=self._certified) from error
                self._turn()
                self.sleep(wait)
                continue
            unreachable.pop(self.server, None)
            if response.is_redirect:
                response.close()
                raise _redirected(self.server, response)
            if response.status_code < 400:
                break
            problem = problem_of(response.status_code, response.headers, response.content, time.time())
            unsure = self._wait_or_refuse(problem, request, attempt, until, unsure)
        try:
            yield response, unsure
        finally:
            response.close()

    def _wait_or_refuse(
        self, problem: ProblemAnswer, request: "_Request", attempt: int, until: float, unsure: bool
    ) -> bool:
        """Handle the answer `problem` to a request: wait until the caller may retry, or raise Refusal.

        A master that answers 502, 503 or 504 may have applied the request. The retry then goes to the next master.

        - `attempt`: the number of the attempt that was answered, from 1.
        - `until`: when retries end, by the client's clock.
        - `unsure`: True if an earlier attempt may have been applied.

        Return the new value of `unsure`: True if this attempt or an earlier one may have been applied.
        """
        match problem.status:
            case 429:
                trouble = AttemptFailure.REFUSED
            case 502 | 503 | 504:
                trouble, unsure = AttemptFailure.UNSURE, True
                self._turn()
            case _:
                raise Refusal(problem, unsure=unsure)
        wait = self._wait(trouble, request.repeatable, attempt, problem.retry_after_s, until)
        if wait is None or problem.status in request.given_back:
            raise Refusal(problem, unsure=unsure)
        if attempt == 1:
            self._note(f"{problem.detail}; retrying for up to {self.patience_s:g} s")
        self.sleep(wait)
        return unsure

    def _wait(
        self, trouble: AttemptFailure, repeatable: bool, attempt: int, asked_s: float | None, until: float
    ) -> float | None:
        left_s = until - self.now()
        return waits(trouble, repeatable=repeatable, attempt=attempt, asked_s=asked_s, left_s=left_s)

    def _turn(self) -> None:
        """Select the next master of the list for all further requests. After the last one comes the first."""
        self._at = (self._at + 1) % len(self._servers)

    def _request(self, request: "_Request") -> httpx.Request:
        params: list[tuple[str, str | int | float | bool | None]] = []
        for name, value in (request.query or {}).items():
            several = value if isinstance(value, (list, tuple)) else (value,)
            params += [(name, each) for each in several if each is not None]
        return self._http.build_request(
            request.method,
            self.server + request.at,
            params=params or None,
            content=request.content,
            headers=request.headers,
            timeout=httpx.Timeout(request.answer_s, connect=CONNECT_S),
        )


@dataclass(frozen=True, slots=True)
class _Request:
    """A request that can be sent to any of the masters. Its fields are named like the parameters of `Client.ask`.

    `whole`: True to read the whole body of the response, False to leave this to the caller.
    """

    method: str
    at: str
    query: Query | None
    content: bytes | None
    headers: Mapping[str, str]
    repeatable: bool
    given_back: frozenset[int]
    answer_s: float
    whole: bool = True


def _unreachable(unreachable: Mapping[str, str], *, unsure: bool) -> Environment:
    if len(unreachable) == 1 and not unsure:
        server, why = next(iter(unreachable.items()))
        if why.startswith(_SPEAKS_HTTP):
            return Environment(f"{server} {why}.")
    servers = "; ".join(f"{server} ({why})" for server, why in unreachable.items())
    more = " An earlier attempt may have been applied." if unsure else ""
    return Environment(f"no master answers at {servers}: is `orb up` running? {ANOTHER}.{more}")


def _unreached(server: str, error: Exception) -> str:
    """Return a phrase for the user on why no connection to `server` could be made."""
    why = str(error).rstrip(".")
    if server.startswith("https:") and any(sign in why for sign in _NO_TLS):
        return f"{_SPEAKS_HTTP}: use http{server.removeprefix('https')}"
    return why or "it does not answer"


def cause_of(error: httpx.RequestError) -> str:
    """Return the text of `error` without its full stop, for use within a sentence. Without a text, return its type."""
    return str(error).rstrip(".") or type(error).__name__


def _silent(server: str, error: httpx.RequestError, method: str, *, certified: bool) -> Exception:
    why = cause_of(error)
    if server.startswith("https:"):  # a server that refuses a certificate may close without an alert
        why += f"; {_REFUSED_CERTIFICATE if certified else _NO_CERTIFICATE}"
    if method in ("GET", "HEAD"):
        return Environment(f"{server} closed the connection ({why}).")
    return Failed(f"{server} closed the connection ({why}): the change may have been made: check before you repeat it.")


def _redirected(server: str, response: httpx.Response) -> Environment:
    where = response.headers.get("location")
    if where is None:
        return Environment(
            f"{server} answered with status {response.status_code}, so it is not an Orbweaver API; {ANOTHER}."
        )
    return Environment(f"{server} redirects to {where}: set that as the server.")


_NO_CERTIFICATE: Final = "if it requires a certificate, set --tls-cert and --tls-key"
_REFUSED_CERTIFICATE: Final = (
    "if it refuses the certificate of --tls-cert, renew an expired one, and use one that the authority of the masters' "
    "--tls-client-ca signed"
)

_NO_TLS: Final = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE")
"""OpenSSL's names for the error that a server does not use TLS. The name depends on OpenSSL's version."""

_SPEAKS_HTTP: Final = "speaks http, not https"

_LOOPBACK: Final = ("all://127.0.0.1", "all://localhost", "all://[::1]")
