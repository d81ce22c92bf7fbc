"""A client of the REST API that several threads can share. It sends each request to a master that answers.

A request without an answer, or with status 429, 502, 503 or 504, is repeated for up to `retry_s` seconds. A retry goes
to the next master, after a growing wait or that of the server's Retry-After. There is no retry after a TLS error, or
if no master is reachable and none has ever answered. Every request can be repeated safely: a create has an
Idempotency-Key or If-None-Match, and a change has If-Match.
"""

import json
import random
import ssl
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NoReturn
from urllib.parse import quote, urlencode

import urllib3
from urllib3.exceptions import ConnectTimeoutError, HTTPError, NewConnectionError, ProtocolError, SSLError

from orb_provider.findings import Finding, Refusal, Rejected
from orb_provider.tls_refusal import NO_CERTIFICATE, OTHER_CERTIFICATE, refused_tls

TYPE: Final = "urn:orbweaver:problem:"
MAX_ANSWER_BYTES: Final = 16 * 2**20
CONNECT_S: Final = 5.0
PAGE: Final = 500
_FIRST_WAIT_S: Final = 0.25
_LONGEST_WAIT_S: Final = 4.0
_LONGEST_COMMAND_WAIT_S: Final = 1.0
_THREADS: Final = 10
_LATER: Final = frozenset({429, 502, 503, 504})


@dataclass(frozen=True, slots=True)
class Access:
    """How to reach a cluster: the base URLs of its masters, the API key (`token`) and the TLS context.

    - `request_timeout_s`: the seconds to wait for an answer.
    - `retry_s`: the seconds during which a request is repeated.
    - `certificate_ends`: when the client certificate expires, None without a certificate.
    """

    servers: tuple[str, ...]
    token: str | None
    context: ssl.SSLContext | None
    request_timeout_s: float
    retry_s: float
    certificate_ends: datetime | None = None

    def __repr__(self) -> str:
        return f"<Access to {', '.join(self.servers)}>"


@dataclass(frozen=True, slots=True)
class Answer:
    """A master's answer with a status below 400, and its body decoded from JSON (None if it is empty).

    `unsure`: an earlier attempt had no definite answer, and may have been applied.
    """

    status: int
    body: Any
    etag: str | None
    unsure: bool


class Client:
    """Sends requests to the masters of a cluster, with retries.

    Methods raise Refusal if a master refuses a request. They raise Rejected if no master answers, or if the server is
    no Orbweaver API.
    """

    def __init__(self, access: Access) -> None:
        self._access = access
        self._at = 0
        self._reached = False
        self._stopped = threading.Event()
        self._headers = {"Accept": "application/json", "User-Agent": "terraform-provider-orb"}
        if access.token is not None:
            self._headers["Authorization"] = f"Bearer {access.token}"
        self._pools = urllib3.PoolManager(
            num_pools=len(access.servers) + 1, maxsize=_THREADS, ssl_context=access.context, retries=False
        )

    def __repr__(self) -> str:
        return f"<Client of {', '.join(self._access.servers)}>"

    def stop(self) -> None:
        """End all waits for a retry or a command, now and later. A request in progress is still answered."""
        self._stopped.set()

    def get(self, *parts: str, query: Mapping[str, Any] | None = None) -> Answer:
        """Send a GET for the path `/v1/PART/PART`, each part quoted, and return the answer."""
        return self.send("GET", *parts, query=query)

    def send(
        self,
        method: str,
        *parts: str,
        body: Any = None,
        query: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Send a request for the path `/v1/PART/PART`, each part quoted, and return the answer. `body` is sent as JSON.

        If the request fails, it is repeated for up to `retry_s` seconds (Access).
        """
        at = "/v1/" + "/".join(quote(part, safe="") for part in parts)
        if query:
            at += "?" + urlencode({key: value for key, value in query.items() if value is not None}, doseq=True)
        sent = self._headers | dict(headers or {})
        content = None
        if body is not None:
            content = json.dumps(body, separators=(",", ":")).encode()
            sent["Content-Type"] = "application/json"
        return self._answered(method, at, content, sent)

    def items(self, *parts: str, query: Mapping[str, Any] | None = None) -> Iterator[dict[str, Any]]:
        """Yield all entries of the list at the path `/v1/PART/PART`. Request the list page by page."""
        cursor = None
        while True:
            page = self.get(*parts, query={**(query or {}), "limit": PAGE, "cursor": cursor}).body
            yield from page["items"]
            cursor = page.get("next")
            if cursor is None:
                return

    def until_applied(self, command: str, seconds: float) -> bool:
        """Wait until all partitions have applied the command with the id `command`. Return True then.

        Return False if this takes longer than `seconds`, or if `stop` is called.
        """
        until, wait = time.monotonic() + seconds, _FIRST_WAIT_S
        while True:
            body = self.get("commands", command).body
            if body["applied"] >= body["partitions"]:
                return True
            if time.monotonic() + wait > until or self._stopped.wait(wait):
                return False
            wait = min(wait * 2, _LONGEST_COMMAND_WAIT_S)

    def _answered(self, method: str, at: str, content: bytes | None, headers: Mapping[str, str]) -> Answer:
        until = time.monotonic() + self._access.retry_s
        unsure, attempt, unreached = False, 0, dict[str, str]()
        while True:
            server = self._access.servers[self._at % len(self._access.servers)]
            asked_s: float | None = None
            try:
                response = self._pools.request(
                    method,
                    server + at,
                    body=content,
                    headers=headers,
                    redirect=False,
                    preload_content=False,
                    timeout=urllib3.Timeout(connect=CONNECT_S, read=self._access.request_timeout_s),
                )
                data = response.read(MAX_ANSWER_BYTES + 1)
                if len(data) > MAX_ANSWER_BYTES:
                    response.close()  # the rest is never read
                response.release_conn()
            except (NewConnectionError, ConnectTimeoutError) as error:
                unreached[server] = _reason(error)
                if len(unreached) == len(self._access.servers) and not self._reached:
                    self._give_up(unreached, unsure)  # nothing ever answered: a wrong URL is no outage
                problem: Exception | None = None
            except HTTPError as error:
                unreached[server] = _reason(error)
                finding = refused_tls(server, error, self._access.certificate_ends, reached=self._reached)
                if finding is not None:
                    raise Rejected(finding) from error  # it will not be accepted later either
                if isinstance(error, SSLError):
                    self._give_up(unreached, unsure)
                problem, unsure = None, True
            else:
                if response.status not in _LATER:
                    self._reached = True
                    return _checked(response.status, response.headers, data, server, unsure)
                unsure = unsure or response.status != 429
                asked_s = _seconds(response.headers.get("Retry-After"))
                problem = _problem(response.status, response.headers, data, server)
                unreached.pop(server, None)
            attempt += 1
            self._at += 1
            own = min(_LONGEST_WAIT_S, _FIRST_WAIT_S * 2.0 ** min(attempt - 1, 8)) * random.uniform(0.75, 1.0)
            wait = own if asked_s is None else asked_s
            if time.monotonic() + wait > until or self._stopped.wait(wait):
                if problem is not None:
                    raise problem
                self._give_up(unreached, unsure)

    def _give_up(self, unreached: Mapping[str, str], unsure: bool) -> NoReturn:
        """Raise Rejected, with a message that no master answers or that Terraform was interrupted.

        `unreached` has the reason for each server. `unsure`: an attempt may have been applied.
        """
        servers = "; ".join(f"{server} ({why})" for server, why in unreached.items())
        summary = "Terraform was interrupted." if self._stopped.is_set() else f"No master answers at {servers}."
        detail = "Check `url` of the provider and that the cluster runs."
        if not self._reached and any(server.startswith("https:") for server in unreached):
            detail += f" {NO_CERTIFICATE if self._access.certificate_ends is None else OTHER_CERTIFICATE}"
        if unsure:
            detail += " An earlier attempt may have been applied: the next plan shows it."
        raise Rejected(Finding(summary, detail, ("url",)))


def _checked(status: int, headers: Mapping[str, str], data: bytes, server: str, unsure: bool) -> Answer:
    """Return the Answer for a response. Raise Refusal for an error of the API.

    Raise Rejected for a redirect, a body that is too large, or an answer that is not the API's. `unsure`: an earlier
    attempt may have been applied.
    """
    if 300 <= status < 400 and status != 304:
        where = headers.get("Location", "elsewhere")
        raise Rejected(Finding(f"{server} redirects to {where}.", "Set that as `url` of the provider.", ("url",)))
    if len(data) > MAX_ANSWER_BYTES:
        raise Rejected(_foreign(server, f"more than {MAX_ANSWER_BYTES} bytes"))
    if status >= 400:
        problem = _problem(status, headers, data, server)
        if isinstance(problem, Refusal):
            problem.unsure = unsure
        raise problem
    return Answer(status, _json(data, headers, server) if data else None, headers.get("ETag"), unsure)


def _problem(status: int, headers: Mapping[str, str], data: bytes, server: str) -> Exception:
    """Return the exception for an error response: Refusal if the body has the form of an API error, else Rejected."""
    try:
        body = _json(data, headers, server)
        kind = str(body["type"]).removeprefix(TYPE)
        errors = [(str(e.get("path", "")), str(e.get("message", "")), str(e.get("hint", ""))) for e in _listed(body)]
        return Refusal(status, kind, str(body.get("detail", "")), str(body.get("hint", "")), errors)
    except Rejected as rejected:
        return rejected
    except (KeyError, TypeError, AttributeError):
        return Rejected(_foreign(server, f"status {status} without a reason"))


def _listed(body: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    errors: Sequence[Mapping[str, Any]] = body.get("errors", [])
    return errors


def _json(data: bytes, headers: Mapping[str, str], server: str) -> Any:
    try:
        body = json.loads(data)
    except (ValueError, RecursionError):
        media = headers.get("Content-Type", "").partition(";")[0] or "something"
        raise Rejected(_foreign(server, f"{media} that is not JSON")) from None
    if not isinstance(body, dict):
        raise Rejected(_foreign(server, "JSON that is no object"))
    return body


def _foreign(server: str, what: str) -> Finding:
    return Finding(
        f"{server} answers with {what}, so it is not an Orbweaver API.", "Set `url` to that of a master.", ("url",)
    )


def _seconds(text: str | None) -> float | None:
    try:
        return None if text is None else max(0.0, float(text))
    except ValueError:  # a date: the client's own wait serves
        return None


def _reason(error: HTTPError) -> str:
    """Return why there was no answer, as the text of the urllib3 error states it."""
    if isinstance(error, ProtocolError):
        return str(error.args[-1]) or "the connection was closed"
    return str(error).rpartition(">: ")[2].removeprefix("Failed to establish a new connection: ") or "no answer"
