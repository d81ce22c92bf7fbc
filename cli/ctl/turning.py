"""start, pause and the other verbs of a crawl; drain; and waiting until something is so.

A verb names the version of the crawl it was meant for, so that repeating it after a lost answer cannot do it twice.
"""

import argparse
from collections.abc import Mapping
from typing import Any, Final

from cli.ctl.client import Client, path
from cli.ctl.columns import standing_of
from cli.ctl.desk import Desk, Verbs
from cli.ctl.problems import Refusal
from cli.exits import Environment, Exit, Failed, Usage

_VERBS: Final[Mapping[str, tuple[str, str]]] = {
    "start": ("started", "run crawls, for the first time or again after they were finished"),
    "pause": ("paused", "send out no new URL; what is out is finished and reported"),
    "resume": ("resumed", "go on with paused crawls"),
    "cancel": ("cancelled", "end crawls now; what was found stays, and `start` takes them up again"),
    "reset": ("reset", "begin crawls anew from their seeds; what they found is removed"),
    "retry-failed": ("retries what failed", "queue every failed URL again, with fresh attempts"),
}
_STATES: Final[Mapping[str, frozenset[str]]] = {
    "start": frozenset(("seeding", "running", "finished")),
    "pause": frozenset(("paused",)),
    "resume": frozenset(("seeding", "running", "finished")),
    "cancel": frozenset(("finished",)),
}
"""The states that a crawl may be found in after a verb was carried out."""

_DRAINS: Final[Mapping[str, str]] = {"drain": "takes nothing new", "undrain": "takes work again"}
_AGAIN: Final = 5
_LOOK_S: Final = 1.0


def declare(verbs: Verbs) -> None:
    """Declare the verbs."""
    for verb, (_, summary) in _VERBS.items():
        parser = verbs.add(verb, summary, _turn, turn=verb)
        parser.add_argument("crawls", nargs="+", metavar="CRAWL")
    for verb, summary in (
        ("drain", "have members take no new work, finish what they have, and stay"),
        ("undrain", "have them work again"),
    ):
        parser = verbs.add(verb, summary, _drain, turn=verb)
        parser.add_argument("kind", choices=("worker", "master"))
        parser.add_argument("ids", nargs="+", metavar="ID")
    wait = verbs.add("wait", "wait until something is so", _wait)
    wait.add_argument("kind", choices=("crawl", "command", "worker", "master"))
    wait.add_argument("name", metavar="NAME")
    wait.add_argument(
        "--for",
        dest="condition",
        metavar="CONDITION",
        help="of a crawl: state=STATE (default state=finished) or deleted; of a command: applied; of a member: drained "
        "(default) or gone",
    )
    wait.add_argument("--timeout", type=float, metavar="S", help="give up after so many seconds, with exit code 1")


def _turn(desk: Desk, arguments: argparse.Namespace) -> int:
    for name in arguments.crawls:
        before, body = turned(desk.client, name, arguments.turn)
        again = arguments.turn == "start" and before["state"] == "finished"
        desk.output.done(f"crawl/{name}", f"{_VERBS[arguments.turn][0]}{' again' if again else ''}", body)
        if again and desk.output.for_people and (left := _left_for(name, before.get("finished_reason"))):
            desk.note(left)
        desk.asked(body)
    return Exit.OK


def _left_for(name: str, reason: str | None) -> str | None:
    """What a crawl that was finished for `reason` finds to do when it is started again, where that may be nothing."""
    match reason:
        case "complete":
            return (
                f"crawl {name} was complete: it fetches what is queued and seeds that it has not seen, and is finished "
                f"again at once where there are none; `orb ctl retry-failed {name}` tries what failed, "
                f"`orb ctl reset {name}` begins anew"
            )
        case str() if reason.startswith("max_"):
            return f"crawl {name} had spent its budget.{reason}: it is finished again at once unless that was raised"
        case _:
            return None


def turned(client: Client, name: str, verb: str) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Ask `verb` of the crawl; how it was before, and the answer, or one like it where the first answer was lost.
    Refusal."""
    at = path("crawls", name)
    for attempt in range(_AGAIN):
        seen = client.get(at)
        headers = {} if seen.etag is None else {"If-Match": seen.etag}
        try:
            body: Mapping[str, Any] = client.ask("POST", f"{at}/{verb}", headers=headers).body
            return seen.body, body
        except Refusal as refusal:
            if refusal.problem.status not in (409, 412):
                raise
            if refusal.unsure and _carried_out(verb, seen.body, now := client.get(at).body):
                return seen.body, {"crawl": now, "command": None}
            if refusal.problem.status == 409 or attempt == _AGAIN - 1:
                raise  # not a change in between: this state does not allow it
    raise AssertionError("unreachable: the last attempt returns or raises")


def _carried_out(verb: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether the crawl is as the verb leaves it, when it was not so before."""
    if verb == "reset":
        return bool(now["id"] != before["id"])
    return now["state"] in _STATES.get(verb, ()) and now["state"] != before["state"]


def _drain(desk: Desk, arguments: argparse.Namespace) -> int:
    for member in arguments.ids:
        body = desk.client.ask("POST", path(f"{arguments.kind}s", member, arguments.turn)).body
        desk.output.done(f"{arguments.kind}/{member}", _DRAINS[arguments.turn], body)
        if not body.get("living", True):
            desk.note(f"{arguments.kind} {member} is not there now; it will find it so when it comes back")
    return Exit.OK


def _wait(desk: Desk, arguments: argparse.Namespace) -> int:
    kind, name = arguments.kind, arguments.name
    wanted = arguments.condition or {"crawl": "state=finished", "command": "applied"}.get(kind, "drained")
    _judge(kind, wanted)
    client = desk.client
    until = None if arguments.timeout is None else client.now() + arguments.timeout
    said = ""  # what was noted last; an outage is one thing, whichever master is named first
    while True:
        outage = False
        try:
            standing = _standing(client, kind, name, wanted)
            if standing is None:
                desk.output.done(f"{kind}/{name}", wanted.partition("=")[2] or wanted)
                return Exit.OK
        except Environment as trouble:
            standing, outage = str(trouble), True
        except Refusal as refusal:
            if refusal.problem.status < 500:
                raise
            standing = refusal.problem.detail
        if until is not None and client.now() + _LOOK_S > until:
            raise Failed(f"{kind} {name} is not {wanted} after {arguments.timeout:g} s: {standing}.")
        if (now := _OUTAGE if outage else standing) != said:
            desk.note(f"{kind} {name}: {standing}")
            said = now
        client.sleep(_LOOK_S)


_OUTAGE: Final = "no master answers"


def _judge(kind: str, wanted: str) -> None:
    legal: Mapping[str, tuple[str, ...]] = {
        "crawl": ("deleted", *(f"state={state}" for state in ("created", "seeding", "running", "paused", "finished"))),
        "command": ("applied",),
    }
    allowed = legal.get(kind, ("drained", "gone"))
    if wanted not in allowed:
        raise Usage(f"--for {wanted}: of a {kind} one can wait for {', '.join(allowed)}.")


def _standing(client: Client, kind: str, name: str, wanted: str) -> str | None:
    """None once it is so; else how it stands, for people."""
    plural = {"crawl": "crawls", "command": "commands"}.get(kind, f"{kind}s")
    try:
        body = client.get(path(plural, name)).body
    except Refusal as refusal:
        if refusal.problem.status == 404 and wanted in ("deleted", "gone"):
            return None
        raise
    match kind:
        case "crawl":
            return None if f"state={body['state']}" == wanted else f"is {body['state']}"
        case "command":
            return (
                None if body["applied"] >= body["partitions"] else f"applied {body['applied']} of {body['partitions']}"
            )
        case _:
            state = standing_of(body)
            return None if state == wanted else f"is {state}"
