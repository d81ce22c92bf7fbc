"""Parses the error answers of a master (problem+json, RFC 9457) and words each as a message for the user.

An answer of another server, or with missing fields, is parsed as far as possible.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final, NamedTuple

import msgspec

from cli.terminal.exits import Environment, Failed, Usage
from cli.terminal.printable import printable
from shared.domain.frontier.failure import parse_retry_after

TYPE: Final = "urn:orbweaver:problem:"
_SHOWN: Final = 300
_LOGIN: Final = (
    "log in with `orb ctl login`, or set ORB_API_KEY; if the admin key is lost, create one with `orb key create`, "
    "directly in the cluster's database"
)


ANOTHER: Final = "set another with --server or ORB_SERVER"
"""The advice for the user if the server that was set is not a master."""

_NO_API: Final = (404, 405, 501)
"""If an HTML answer has one of these statuses, the server is not a master.

An HTML answer with any other status may come from a proxy in front of a master.
"""


@dataclass(frozen=True, slots=True)
class WrongField:
    """An error in one field of a request.

    `path` names the field, and `hint` says how to correct it (empty: no hint).
    """

    path: str
    message: str
    hint: str


class RejectedLine(NamedTuple):
    """A line of an upload that is not a valid seed. `line` is its number, from 1."""

    line: int
    url: str
    reason: str


@dataclass(frozen=True, slots=True)
class ProblemAnswer:
    """An error answer to a request.

    - `kind`: the last part of the problem type's URN, empty if the sender is not a master.
    - `errors`: the fields of the request that are wrong.
    - `durable_lines`: if only the first lines of an upload were stored, the number of these lines. Otherwise None.
    - `accepted`, `duplicate`, `rejected`: how many of these lines were accepted, repeated or rejected.
    - `first_rejected`: the first of these rejected lines.
    - `retry_after_s`: the seconds of the header Retry-After, None without one.
    """

    status: int
    kind: str
    detail: str
    hint: str = ""
    errors: tuple[WrongField, ...] = ()
    request_id: str = ""
    accepted: int | None = None
    durable_lines: int | None = None
    retry_after_s: float | None = None
    duplicate: int = 0
    rejected: int = 0
    first_rejected: tuple[RejectedLine, ...] = ()


class Refusal(Exception):
    """A server answered a request with an error, and the request is not retried any more.

    `unsure`: True if the request may have been applied, because an attempt had no definite answer.
    """

    def __init__(self, problem: ProblemAnswer, *, unsure: bool = False) -> None:
        super().__init__(sentence(problem))
        self.problem = problem
        self.unsure = unsure

    def ending(self) -> Exception:
        """Return the exception that ends the command with this refusal's message and the exit code for its status.

        The exception is Usage for an invalid request (400, 413, 415, 422), Environment from 500 on, else Failed.
        """
        match self.problem.status:
            case 400 | 413 | 415 | 422:
                return Usage(str(self))
            case status if status >= 500:
                return Environment(str(self))
            case _:
                return Failed(str(self))


def problem_of(status: int, headers: Mapping[str, str], content: bytes, now_s: float) -> ProblemAnswer:
    """Return the error in an answer with status 400 or above. The sender may be any server, not only a master.

    `now_s` is the Unix time, from which a date in Retry-After is counted.
    """
    asked = headers.get("retry-after")
    retry = None if asked is None else parse_retry_after(asked, now_s)
    try:
        body: Any = msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError):
        body = None
    if not isinstance(body, dict):
        if status in _NO_API and content.lstrip().startswith(b"<"):
            return ProblemAnswer(
                status, "", f"the server answered {_phrase(status)} with HTML, so it is not an Orbweaver API", ANOTHER
            )
        text = " ".join(content[:_SHOWN].decode("utf-8", "replace").split())
        return ProblemAnswer(
            status, "", f"the server answered {_phrase(status)}: {text}".rstrip(": "), retry_after_s=retry
        )
    kind = str(body.get("type", ""))
    return ProblemAnswer(
        status,
        kind.removeprefix(TYPE) if kind.startswith(TYPE) else "",
        str(body.get("detail") or body.get("title") or f"the server answered {_phrase(status)}"),
        str(body.get("hint") or ""),
        tuple(_wrong(each) for each in _listed(body.get("errors"))),
        str(body.get("request_id") or ""),
        _number(body.get("accepted")),
        _number(body.get("durable_lines")),
        retry,
        _number(body.get("duplicate")) or 0,
        _number(body.get("rejected")) or 0,
        tuple(map(rejected_line, _listed(body.get("first_rejected")))),
    )


def sentence(problem: ProblemAnswer) -> str:
    """Return the message of an error for people: what went wrong, in which fields, and what to do."""
    text = printable(problem.detail)
    hint = printable(problem.hint)
    if problem.status == 401:
        hint = _LOGIN
    if problem.status >= 500 and problem.request_id:
        text += f" (request {printable(problem.request_id)})"
    if problem.errors:
        lines = [
            f"  {_named(each)}{printable(each.message)}" + (f" ({printable(each.hint)})" if each.hint else "")
            for each in problem.errors
        ]
        return "\n".join([f"{text}:", *lines, *([f"  {hint}"] if hint else [])])
    return f"{text}; {hint}" if hint else text


def _named(wrong: WrongField) -> str:
    return f"{printable(wrong.path)}: " if wrong.path else ""


def _wrong(data: Any) -> WrongField:
    if not isinstance(data, dict):
        return WrongField("", str(data), "")
    return WrongField(*(str(data.get(name) or "") for name in ("path", "message", "hint")))


def rejected_line(data: Any) -> RejectedLine:
    """Convert an entry of `first_rejected` in an answer to an upload. A missing field becomes 0 or empty."""
    fields = data if isinstance(data, dict) else {}
    return RejectedLine(_number(fields.get("line")) or 0, *(str(fields.get(name) or "") for name in ("url", "reason")))


def _listed(data: Any) -> list[Any]:
    return data if isinstance(data, list) else []


def _number(data: Any) -> int | None:
    return data if isinstance(data, int) else None


def _phrase(status: int) -> str:
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)
