"""Verbs of `orb ctl` for schedules, and what a file would change of one."""

import argparse
from collections.abc import Mapping
from typing import Any, Final

from cli.ctl.client import Client, path
from cli.ctl.declared import Declared
from cli.ctl.problems import Refusal
from cli.ctl.verb_context import VerbContext, Verbs
from cli.terminal.exits import Exit

_DEFAULTS: Final[Mapping[str, Any]] = {
    "crawl": None,
    "selector": {},
    "verb": None,
    "cron": None,
    "every_s": None,
    "zone": "UTC",
    "window": None,
    "jitter_s": 0,
    "overlap": "skip",
    "catch_up": "none",
    "late_s": 120,
    "paused": False,
}
"""The values of the fields that a file leaves out."""

_TURNED: Final = {"pause": "paused", "resume": "resumed"}


def declare(verbs: Verbs) -> None:
    """Add the verbs for schedules to `orb ctl`."""
    family = verbs.family("schedules", "pause and resume schedules (`get schedules` lists them)")
    for turn, summary in (("pause", "fire nothing"), ("resume", "fire again, from the next due time on")):
        parser = family.add(turn, summary, _turn, turn=turn)
        parser.add_argument("names", nargs="+", metavar="NAME")


def schedule_plan(client: Client, wanted: Declared) -> Mapping[str, Any]:
    """Return what a PUT of the schedule would change, in the form of a crawl's plan."""
    try:
        stored = client.get(path("schedules", wanted.name)).body
    except Refusal as refusal:
        if refusal.problem.status != 404:
            raise
        return {"action": "create", "changes": []}
    given = {**_DEFAULTS, **wanted.body}
    changes = [
        {"path": name, "before": stored.get(name), "after": value}
        for name, value in given.items()
        if stored.get(name) != value
    ]
    return {"action": "update" if changes else "none", "changes": changes}


def _turn(desk: VerbContext, arguments: argparse.Namespace) -> int:
    for name in arguments.names:
        body = desk.client.ask("POST", path("schedules", name, arguments.turn)).body
        desk.output.done(f"schedule/{name}", _TURNED[arguments.turn], body)
    return Exit.OK
