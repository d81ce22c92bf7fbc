"""The context that each verb of `orb ctl` gets, and the class with which modules declare their verbs."""

import argparse
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cli.ctl.client import Client
from cli.ctl.output import CtlOutput
from cli.terminal.exits import Usage
from cli.terminal.printable import printable


@dataclass(frozen=True, slots=True)
class VerbContext:
    """The objects that a verb of `orb ctl` uses: the client of the cluster, and the output of the command."""

    client: Client
    output: CtlOutput

    def note(self, line: str) -> None:
        """Print a message to stderr, so that it is not part of the result."""
        note(line)

    def asked(self, answer: Mapping[str, Any]) -> None:
        """Print to stderr how the user can wait until all owners have applied a command.

        `answer` is the API's answer to the request that issued the command. Print nothing if it names no command, or if
        the output format is for programs.
        """
        if answer.get("command") is not None and self.output.for_people:
            self.note(f"the owners apply it: `orb ctl wait command {answer['command']}` waits until all have")

    def issued(self, made: Mapping[str, Any]) -> None:
        """Print the secret of a new API key. `made` is the API's answer to the request that created the key.

        No later answer contains the secret. Print nothing if the output format is for programs: the command then
        prints the whole answer.
        """
        if made.get("key") is not None and self.output.for_people:
            self.output.say(made["key"])
            self.note(f"key {made['name']} ({made['effective']['role']}), id {made['id']}; it is not shown again")

    def check_shows_secrets(self) -> None:
        """Raise Usage if the output format is `-o name`, which does not show the secret of a new API key."""
        if self.output.names_only:
            raise Usage("-o name would lose the secret of the new key, which is shown only once: choose another form.")


Verb = Callable[[VerbContext, argparse.Namespace], int]
LocalVerb = Callable[[argparse.Namespace], int]


class Verbs:
    """Declares verbs of `orb ctl`. Each verb gets a parser, which also accepts the common options of `orb ctl`."""

    def __init__(self, verbs: Any, options: argparse.ArgumentParser) -> None:
        self._verbs = verbs
        self._options = options

    def add(self, name: str, summary: str, verb: Verb, **more: object) -> argparse.ArgumentParser:
        """Declare a verb that sends requests to the cluster, and return its parser.

        - `summary`: the help text.
        - `verb`: the function that runs the verb.
        - `more`: arguments with fixed values, which are added to the parsed arguments.
        """
        return self._parser(name, summary, [self._options], carry_out=verb, **more)

    def add_local(self, name: str, summary: str, verb: LocalVerb) -> argparse.ArgumentParser:
        """Declare a verb that gets no client, such as login, and return its parser. `summary` is the help text."""
        return self._parser(name, summary, [self._options], local=verb)

    def family(self, name: str, summary: str) -> "Verbs":
        """Declare a word that precedes verbs, such as `seeds` in `seeds add`.

        Return an object on which to declare these verbs.
        """
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
    """Print a message for the user to stderr, after `orb: `. Escape text that may control a terminal."""
    print(f"orb: {printable(line)}", file=sys.stderr, flush=True)
