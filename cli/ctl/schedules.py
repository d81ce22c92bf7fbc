"""Verbs of `orb ctl` for schedules (`get schedules` lists them)."""

import argparse
from typing import Final

from cli.ctl.client import path
from cli.ctl.verb_context import VerbContext, Verbs
from cli.terminal.exits import Exit

_TURNED: Final = {"pause": "paused", "resume": "resumed"}


def declare(verbs: Verbs) -> None:
    """Add the verbs for schedules to `orb ctl`."""
    family = verbs.family("schedules", "pause and resume schedules (`get schedules` lists them)")
    for turn, summary in (("pause", "fire nothing"), ("resume", "fire again, from the next due time on")):
        parser = family.add(turn, summary, _turn, turn=turn)
        parser.add_argument("names", nargs="+", metavar="NAME")


def _turn(desk: VerbContext, arguments: argparse.Namespace) -> int:
    for name in arguments.names:
        body = desk.client.ask("POST", path("schedules", name, arguments.turn)).body
        desk.output.done(f"schedule/{name}", _TURNED[arguments.turn], body)
    return Exit.OK
