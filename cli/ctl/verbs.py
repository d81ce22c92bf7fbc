"""The verbs of `orb ctl` for a crawl, such as start and pause, and the verbs drain, undrain and wait.

A verb for a crawl is sent with the crawl's ETag. So a repeated request does not apply the verb twice.
"""

import argparse
from collections.abc import Mapping
from typing import Any, Final

from cli.ctl.client import Client, path
from cli.ctl.columns import status_of
from cli.ctl.problems import Refusal
from cli.ctl.verb_context import VerbContext, Verbs
from cli.terminal.exits import Environment, Exit, Failed, Usage

_VERBS: Final[Mapping[str, tuple[str, str]]] = {
    "start": ("started", "start crawls, for the first time or again after they finished"),
    "refresh": ("refreshes its pages", "fetch what is new and what is due now, and then finish; needs `recrawl`"),
    "pause": ("paused", "pause crawls: no new requests; requests in progress are finished"),
    "resume": ("resumed", "resume paused crawls"),
    "cancel": ("cancelled", "finish crawls now and keep their results; `start` continues them"),
    "reset": ("reset", "delete the results of crawls and start again from their seeds"),
    "retry-failed": ("retries its failed URLs", "queue every failed URL again, with new attempts"),
}
_STATES: Final[Mapping[str, frozenset[str]]] = {
    "start": frozenset(("seeding", "running", "finished")),
    "refresh": frozenset(("seeding", "running", "finished")),
    "pause": frozenset(("paused",)),
    "resume": frozenset(("seeding", "running", "finished")),
    "cancel": frozenset(("finished",)),
}
"""For each verb, the states in which a crawl may be after the verb was applied."""

_DRAINS: Final[Mapping[str, str]] = {"drain": "accepts no new work", "undrain": "accepts work again"}
_AGAIN: Final = 5
_LOOK_S: Final = 1.0


def declare(verbs: Verbs) -> None:
    """Add the verbs for crawls, and drain, undrain and wait, to `orb ctl`."""
    for verb, (_, summary) in _VERBS.items():
        parser = verbs.add(verb, summary, _turn, turn=verb)
        parser.add_argument("crawls", nargs="+", metavar="CRAWL")
    for verb, summary in (
        ("drain", "drain members: they finish their work and take no new work"),
        ("undrain", "let drained members work again"),
    ):
        parser = verbs.add(verb, summary, _drain, turn=verb)
        parser.add_argument("kind", choices=("worker", "master"))
        parser.add_argument("ids", nargs="+", metavar="ID")
    wait = verbs.add("wait", "wait for a condition", _wait)
    wait.add_argument("kind", choices=("crawl", "command", "worker", "master"))
    wait.add_argument("name", metavar="NAME")
    wait.add_argument(
        "--for",
        dest="condition",
        metavar="CONDITION",
        help="of a crawl: state=STATE (default state=finished) or deleted; of a command: applied; of a member: drained "
        "(default) or stopped",
    )
    wait.add_argument("--timeout", type=float, metavar="S", help="stop waiting after S seconds, with exit code 1")


def _turn(desk: VerbContext, arguments: argparse.Namespace) -> int:
    for name in arguments.crawls:
        before, body = turned(desk.client, name, arguments.turn)
        again = arguments.turn == "start" and before["state"] == "finished"
        desk.output.done(f"crawl/{name}", f"{_VERBS[arguments.turn][0]}{' again' if again else ''}", body)
        if again and desk.output.for_people and (left := _left_for(name, before.get("finished_reason"))):
            desk.note(left)
        desk.asked(body)
    return Exit.OK


def _left_for(name: str, reason: str | None) -> str | None:
    """Return a warning for a crawl that was started again after it finished: it may finish again at once.

    `reason`: why the crawl `name` finished before.

    - `complete`: everything was fetched, so there may be nothing left to fetch.
    - A budget, such as `max_pages`: the budget is used up, unless it was raised.
    - Any other reason: the result is None, because the crawl can go on.
    """
    match reason:
        case "complete":
            return (
                f"crawl {name} was complete: it fetches queued URLs and new seeds, and finishes again at once if there "
                f"are none; `orb ctl retry-failed {name}` retries failed URLs, "
                f"`orb ctl reset {name}` starts over"
            )
        case str() if reason.startswith("max_"):
            return f"crawl {name} had used up its budget.{reason}: it finishes again at once unless that was raised"
        case _:
            return None


def turned(client: Client, name: str, verb: str) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Apply the verb to the crawl. Return the crawl as it was before, and the body of the API's answer.

    If the answer was lost, but the crawl shows that the verb was applied, build the answer from its present state.
    If the crawl was changed meanwhile, try again a few times.

    Raise Refusal if the API refuses the verb. Raise Failed if it is unknown whether `retry-failed` was applied.
    """
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
            if refusal.unsure and verb == "retry-failed" and refusal.problem.status == 412:
                raise Failed(_uncertain(name)) from refusal
            if refusal.problem.status == 409 or attempt == _AGAIN - 1:
                raise  # not a change in between: this state does not allow it
    raise AssertionError("unreachable: the last attempt returns or raises")


def _carried_out(verb: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Return True if a comparison of the crawl before and now shows that the verb was applied.

    `before` and `now` are the API's answers for the crawl before the verb and at present.

    - `reset`: the crawl has another id.
    - `start` and `refresh` of a finished crawl: the time at which the crawl finished has changed.
    - `retry-failed`: the result is always False, because this verb cannot be recognized from the crawl.
    - Any other verb: the state has changed to one of the states in `_STATES` for the verb.
    """
    if verb == "reset":
        return bool(now["id"] != before["id"])
    if verb in ("start", "refresh") and before["state"] == "finished":
        return bool(now["finished_at"] != before["finished_at"])
    return now["state"] in _STATES.get(verb, ()) and now["state"] != before["state"]


def _uncertain(name: str) -> str:
    """Return the error message for a `retry-failed` whose answer was lost. The master may have applied it."""
    return (
        f"the answer to retry-failed was lost, and crawl {name} has changed since, so its failed URLs may be queued "
        f"already. `orb ctl get urls -c {name} --state failed` lists those that are not; `orb ctl get audit --target "
        f"{name} --action crawl.retry-failed`, with an admin's key, shows if it was applied."
    )


def _drain(desk: VerbContext, arguments: argparse.Namespace) -> int:
    for member in arguments.ids:
        body = desk.client.ask("POST", path(f"{arguments.kind}s", member, arguments.turn)).body
        desk.output.done(f"{arguments.kind}/{member}", _DRAINS[arguments.turn], body)
        if not body.get("alive", True):
            desk.note(f"{arguments.kind} {member} is not running now; this applies when it returns")
    return Exit.OK


def _wait(desk: VerbContext, arguments: argparse.Namespace) -> int:
    kind, name = arguments.kind, arguments.name
    condition = arguments.condition or {"crawl": "state=finished", "command": "applied"}.get(kind, "drained")
    _judge(kind, condition)
    client = desk.client
    until = None if arguments.timeout is None else client.now() + arguments.timeout
    noted = ""  # the last note; all outages count as the same, whichever master they name
    while True:
        outage = False
        try:
            status = _status(client, kind, name, condition)
            if status is None:
                desk.output.done(f"{kind}/{name}", condition.partition("=")[2] or condition)
                return Exit.OK
        except Environment as trouble:
            status, outage = str(trouble), True
        except Refusal as refusal:
            if refusal.problem.status < 500:
                raise
            status = refusal.problem.detail
        if until is not None and client.now() + _LOOK_S > until:
            raise Failed(f"{kind} {name} is not {condition} after {arguments.timeout:g} s: {status}.")
        if (now := _OUTAGE if outage else status) != noted:
            desk.note(f"{kind} {name}: {status}")
            noted = now
        client.sleep(_LOOK_S)


_OUTAGE: Final = "no master answers"


def _judge(kind: str, condition: str) -> None:
    legal: Mapping[str, tuple[str, ...]] = {
        "crawl": ("deleted", *(f"state={state}" for state in ("created", "seeding", "running", "paused", "finished"))),
        "command": ("applied",),
    }
    allowed = legal.get(kind, ("drained", "stopped"))
    if condition not in allowed:
        raise Usage(f"--for {condition}: expected for a {kind} one of {', '.join(allowed)}.")


def _status(client: Client, kind: str, name: str, condition: str) -> str | None:
    """Request the resource from the API. Return None if it meets the condition of `orb ctl wait`, such as `drained`.

    Otherwise return the present status as a phrase for people, such as `is running`.
    """
    plural = {"crawl": "crawls", "command": "commands"}.get(kind, f"{kind}s")
    try:
        body = client.get(path(plural, name)).body
    except Refusal as refusal:
        if refusal.problem.status == 404 and condition in ("deleted", "stopped"):
            return None
        raise
    match kind:
        case "crawl":
            return None if f"state={body['state']}" == condition else f"is {body['state']}"
        case "command":
            return (
                None if body["applied"] >= body["partitions"] else f"applied {body['applied']} of {body['partitions']}"
            )
        case _:
            state = status_of(body)
            return None if state == condition else f"is {state}"
