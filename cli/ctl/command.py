"""`orb ctl`: its options and verbs, and how what a master refuses ends the command."""

import argparse
import os
import sys
from collections.abc import Mapping
from functools import partial
from typing import Final

from cli.ctl import bulk, declaring, following, login, reading, seeding, tending, turning
from cli.ctl.client import PATIENCE_S, Client
from cli.ctl.contexts import CONTEXT, KEY, SERVER, TLS, chosen, default_path, load
from cli.ctl.desk import Desk, Verb, Verbs, note
from cli.ctl.output import FORMS, Output
from cli.ctl.problems import Refusal
from cli.exits import Usage

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
    "tls_cert": "our own certificate, where masters demand one",
    "tls_key": "and the key of that",
}


def configure(parser: argparse.ArgumentParser) -> None:
    """The options may stand before the verb and behind it; what stands behind goes first."""
    options = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for each in (options, parser):
        _declare_options(each)
    parser.set_defaults(**_OPTIONS)
    verbs = Verbs(
        parser.add_subparsers(title="verbs", metavar="VERB", required=True, parser_class=type(parser)), options
    )
    for family in (reading, declaring, turning, seeding, following, bulk, tending, login):
        family.declare(verbs)


def _declare_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("which cluster, and how it is told")
    add = partial(group.add_argument, default=argparse.SUPPRESS)
    add("--server", metavar="URL[,URL]", help=f"masters, in the order they are tried [{SERVER}]")
    add("--key", metavar="KEY", help=f"API key; other users of this machine can see it here [{KEY}]")
    add("--context", metavar="NAME", help=f"a login that is stored [{CONTEXT}]")
    for flag, what in _FILES.items():
        add(f"--{flag.replace('_', '-')}", metavar="FILE", help=f"{what} [{TLS[flag]}]")
    add("--patience", type=_seconds, metavar="S", help=f"seconds to go on trying for (default {PATIENCE_S:g})")
    add("-o", "--output", choices=FORMS, help="table (default), wide, json, yaml, or name: the names alone")


def run(arguments: argparse.Namespace) -> int:
    """Carry out the verb. Usage, Failed or Environment with one sentence."""
    if "local" in arguments:
        code: int = arguments.local(arguments)
        return code
    flags = {name: getattr(arguments, name) for name in ("server", "key", "context", *TLS)}
    access = chosen(flags, os.environ, load(default_path(os.environ)))
    with Client(access, patience_s=arguments.patience, note=note) as client:
        return carried_out(arguments.carry_out, Desk(client, Output(arguments.output)), arguments)


def carried_out(verb: Verb, desk: Desk, arguments: argparse.Namespace) -> int:
    """What the verb returns; a refusal becomes the exception that ends the command."""
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
