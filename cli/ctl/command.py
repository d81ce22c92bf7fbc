"""`orb ctl`: declares its options and verbs, runs a verb, and converts a master's refusal to the command's error."""

import argparse
import os
import sys
from collections.abc import Mapping
from functools import partial
from typing import Final

from cli.ctl import admin, bulk, creation, events, login, reads, schedules, seeds
from cli.ctl import verbs as crawl_verbs
from cli.ctl.client import PATIENCE_S, Client
from cli.ctl.contexts import CONTEXT, KEY, SERVER, TLS, chosen, default_path, load
from cli.ctl.estate import apply
from cli.ctl.output import FORMS, CtlOutput
from cli.ctl.problems import Refusal
from cli.ctl.verb_context import Verb, VerbContext, Verbs, note
from cli.terminal.exits import Usage

_OPTIONS: Final[Mapping[str, object]] = {
    "server": None,
    "key": None,
    "context": None,
    **dict.fromkeys(TLS),
    "patience": PATIENCE_S,
    "output": "table",
}

_FILES: Final[Mapping[str, str]] = {
    "tls_ca": "the CA of the masters' certificates",
    "tls_cert": "client certificate, if masters require one",
    "tls_key": "the key of that certificate",
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options and verbs of `orb ctl`. An option may come before or after the verb.

    If an option comes before and after the verb, the second one applies.
    """
    options = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for each in (options, parser):
        _declare_options(each)
    parser.set_defaults(**_OPTIONS)
    verbs = Verbs(
        parser.add_subparsers(title="verbs", metavar="VERB", required=True, parser_class=type(parser)), options
    )
    for family in (reads, apply, creation, crawl_verbs, schedules, seeds, events, bulk, admin, login):
        family.declare(verbs)


def _declare_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("connection to the cluster")
    add = partial(group.add_argument, default=argparse.SUPPRESS)
    add("--server", metavar="URL[,URL]", help=f"addresses of masters, tried in this order [{SERVER}]")
    add(
        "--key", metavar="KEY", help=f"API key; other users of this machine can see it in the list of processes [{KEY}]"
    )
    add("--context", metavar="NAME", help=f"name of a stored login [{CONTEXT}]")
    for flag, what in _FILES.items():
        add(f"--{flag.replace('_', '-')}", metavar="FILE", help=f"{what} [{TLS[flag]}]")
    add("--patience", type=_seconds, metavar="S", help=f"seconds to retry for (default {PATIENCE_S:g})")
    add("-o", "--output", choices=FORMS, help="format: table (default), wide, json, yaml, or name for names only")


def run(arguments: argparse.Namespace) -> int:
    """Run the verb of an `orb ctl` command. Return its exit code.

    Raise Usage, Failed or Environment, with a message for the user, if the command fails.
    """
    if "local" in arguments:
        code: int = arguments.local(arguments)
        return code
    flags = {name: getattr(arguments, name) for name in ("server", "key", "context", *TLS)}
    access = chosen(flags, os.environ, load(default_path(os.environ)))
    with Client(access, patience_s=arguments.patience, note=note) as client:
        return carried_out(arguments.carry_out, VerbContext(client, CtlOutput(arguments.output)), arguments)


def carried_out(verb: Verb, desk: VerbContext, arguments: argparse.Namespace) -> int:
    """Run the verb and return its exit code.

    If a master refuses a request, raise Usage, Failed or Environment instead.
    """
    try:
        return verb(desk, arguments)
    except Refusal as refusal:
        sys.stdout.flush()
        raise refusal.ending() from refusal


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= 86_400:
        raise Usage(f"--patience: expected seconds from 0 to 86400, got {text!r}.")
    return seconds
