"""What a master says when it refuses (problem+json, RFC 9457), read with patience and told in one sentence."""

from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any, Final

import msgspec

from cli.ctl.cells import printable
from cli.exits import Environment, Failed, Usage

TYPE: Final = "urn:orbweaver:problem:"
_SHOWN: Final = 300
_LOGIN: Final = (
    "log in with `orb ctl login`, or give a key with ORB_API_KEY; a lost admin key is replaced by `orb key create`, on "
    "the cluster's database itself"
)


ANOTHER: Final = "--server or ORB_SERVER names another"
"""What to do where something else than a master is asked."""

_NO_API: Final = (404, 405, 501)
"""What a server of other things says, in HTML; other pages may be those of a proxy before a master."""


@dataclass(frozen=True, slots=True)
class WrongField:
    """One thing wrong with what was sent."""

    path: str
    message: str
    hint: str


@dataclass(frozen=True, slots=True)
class Problem:
    """An answer that is an error. `kind` is the last part of its type, empty where something else than a master spoke.

    `accepted` and `durable_lines` are those of an upload that broke off. `retry_after_s` is what the server asked for.
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


class Refusal(Exception):
    """A request was answered with a problem, and repeating it does not help. `unsure`: an earlier attempt at it had no
    answer, and may have been carried out."""

    def __init__(self, problem: Problem, *, unsure: bool = False) -> None:
        super().__init__(sentence(problem))
        self.problem = problem
        self.unsure = unsure

    def ending(self) -> Exception:
        """How the command ends with it: Usage where the request was wrong, Environment where the cluster could not."""
        match self.problem.status:
            case 400 | 413 | 415 | 422:
                return Usage(str(self))
            case status if status >= 500:
                return Environment(str(self))
            case _:
                return Failed(str(self))


def told(status: int, headers: Mapping[str, str], content: bytes, now_s: float) -> Problem:
    """The problem in an answer, whoever wrote it; `now_s` is the Unix time that a Retry-After date is compared with."""
    retry = _retry_after(headers.get("retry-after"), now_s)
    try:
        body: Any = msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError):
        body = None
    if not isinstance(body, dict):
        if status in _NO_API and content.lstrip().startswith(b"<"):
            return Problem(status, "", f"the server answered {_phrase(status)}: that is no Orbweaver API", ANOTHER)
        text = " ".join(content[:_SHOWN].decode("utf-8", "replace").split())
        return Problem(status, "", f"the server answered {_phrase(status)}: {text}".rstrip(": "), retry_after_s=retry)
    kind = str(body.get("type", ""))
    return Problem(
        status,
        kind.removeprefix(TYPE) if kind.startswith(TYPE) else "",
        str(body.get("detail") or body.get("title") or f"the server answered {_phrase(status)}"),
        str(body.get("hint") or ""),
        tuple(_wrong(each) for each in _listed(body.get("errors"))),
        str(body.get("request_id") or ""),
        _number(body.get("accepted")),
        _number(body.get("durable_lines")),
        retry,
    )


def sentence(problem: Problem) -> str:
    """What to tell a person: what went wrong, with which fields, and what to do about it."""
    said = printable(problem.detail)
    hint = printable(problem.hint)
    if problem.status == 401:
        hint = _LOGIN
    if problem.status >= 500 and problem.request_id:
        said += f" (request {printable(problem.request_id)})"
    if problem.errors:
        lines = [
            f"  {_named(each)}{printable(each.message)}" + (f" ({printable(each.hint)})" if each.hint else "")
            for each in problem.errors
        ]
        return "\n".join([f"{said}:", *lines, *([f"  {hint}"] if hint else [])])
    return f"{said}; {hint}" if hint else said


def _named(wrong: WrongField) -> str:
    return f"{printable(wrong.path)}: " if wrong.path else ""


def _wrong(data: Any) -> WrongField:
    if not isinstance(data, dict):
        return WrongField("", str(data), "")
    return WrongField(*(str(data.get(name) or "") for name in ("path", "message", "hint")))


def _listed(data: Any) -> list[Any]:
    return data if isinstance(data, list) else []


def _number(data: Any) -> int | None:
    return data if isinstance(data, int) else None


def _phrase(status: int) -> str:
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)


def _retry_after(text: str | None, now_s: float) -> float | None:
    """Seconds, from either form of the header."""
    if text is None:
        return None
    if text.strip().isascii() and text.strip().isdigit():
        return float(text)
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - now_s)
    except ValueError:
        return None
