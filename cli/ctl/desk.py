"""What a verb works with, and how it is declared."""

import argparse
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cli.ctl.cells import printable
from cli.ctl.client import Client
from cli.ctl.output import Output


@dataclass(frozen=True, slots=True)
class Desk:
    """The cluster, and where its answers go."""

    client: Client
    output: Output

    def note(self, line: str) -> None:
        """Something a person should know now; on stderr, so that no program trips over it."""
        note(line)

    def asked(self, answer: Mapping[str, Any]) -> None:
        """Say how to wait for the command that an answer names, if it names one."""
        if answer.get("command") is not None and self.output.for_people:
            self.note(f"owners apply it: `orb ctl wait command {answer['command']}` returns once all have")


Verb = Callable[[Desk, argparse.Namespace], int]
LocalVerb = Callable[[argparse.Namespace], int]


class Verbs:
    """Declares verbs: each is a parser of its own that also takes the options of `orb ctl`."""

    def __init__(self, verbs: Any, options: argparse.ArgumentParser) -> None:
        self._verbs = verbs
        self._options = options

    def add(self, name: str, summary: str, verb: Verb, **more: object) -> argparse.ArgumentParser:
        """A verb that asks the cluster; `more` are arguments that it does not leave to the person."""
        return self._parser(name, summary, [self._options], carry_out=verb, **more)

    def add_local(self, name: str, summary: str, verb: LocalVerb) -> argparse.ArgumentParser:
        """A verb that looks for its cluster by itself, or needs none."""
        return self._parser(name, summary, [self._options], local=verb)

    def family(self, name: str, summary: str) -> "Verbs":
        """Verbs below a word: `seeds add`."""
        parser = self._parser(name, summary, [])
        members = parser.add_subparsers(title="verbs", metavar="VERB", required=True, parser_class=type(parser))
        return Verbs(members, self._options)

    def _parser(
        self, name: str, summary: str, parents: list[argparse.ArgumentParser], **defaults: object
    ) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = self._verbs.add_parser(
            name, help=summary, description=summary, allow_abbrev=False, parents=parents
        )
        parser.set_defaults(**defaults)
        return parser


def note(line: str) -> None:
    """A line on stderr."""
    print(f"orb: {printable(line)}", file=sys.stderr, flush=True)
