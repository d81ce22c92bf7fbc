"""Verbs login, logout, contexts and use of `orb ctl`. They change and list the stored contexts (see `contexts`)."""

import argparse
import getpass
import os
import sys

from cli.ctl.client import Client
from cli.ctl.contexts import (
    DEFAULT,
    KEY,
    SERVER,
    TLS,
    Access,
    addresses,
    checked_key,
    default_path,
    files,
    given_key,
    load,
    save,
)
from cli.ctl.problems import Refusal
from cli.ctl.verb_context import Verbs, note
from cli.terminal.exits import Exit, Usage


def declare(verbs: Verbs) -> None:
    """Add the verbs login, logout, contexts and use to `orb ctl`."""
    login = verbs.add_local("login", "check a key and store it in a file that only you can read", _login)
    login.add_argument("--unchecked", action="store_true", help="store the key without checking it")
    verbs.add_local("logout", "delete a stored login", _logout)
    verbs.add_local("contexts", "list stored logins", _contexts)
    use = verbs.add_local("use", "make a stored login the current one", _use)
    use.add_argument("name", metavar="NAME")


def _login(arguments: argparse.Namespace) -> int:
    file = default_path(os.environ)
    contexts = load(file)
    name = arguments.context or DEFAULT
    given = arguments.server or os.environ.get(SERVER)
    if given is None and name not in contexts.known:
        raise Usage("no server given: run `orb ctl login --server http://host:port`.")
    servers = contexts.known[name].servers if given is None else addresses(given.split(","))
    tls = files({flag: getattr(arguments, flag) for flag in TLS}, os.environ)
    if tls is None and given is None:
        tls = contexts.known[name].tls
    access = Access(servers, given_key(arguments.key, os.environ) or _asked(), tls)
    if not arguments.unchecked:
        with Client(access, patience_s=arguments.patience, note=note) as client:
            try:
                client.get("/v1/cluster")
            except Refusal as refusal:
                raise refusal.ending() from refusal
    save(file, contexts.having(name, access))
    print(f"context/{name} logged in at {', '.join(servers)}")
    return Exit.OK


def _logout(arguments: argparse.Namespace) -> int:
    file = default_path(os.environ)
    contexts = load(file)
    name = arguments.context or contexts.current or DEFAULT
    save(file, contexts.without(name))
    print(f"context/{name} deleted")
    return Exit.OK


def _contexts(arguments: argparse.Namespace) -> int:
    contexts = load(default_path(os.environ))
    for name, access in sorted(contexts.known.items()):
        print(f"{'*' if name == contexts.current else ' '} {name}  {','.join(access.servers)}")
    return Exit.OK


def _use(arguments: argparse.Namespace) -> int:
    file = default_path(os.environ)
    save(file, load(file).using(arguments.name))
    print(f"context/{arguments.name} is the current context")
    return Exit.OK


def _asked() -> str:
    """Return the API key that the user types without echo, or that is piped in.

    Raise Usage if it is empty or cannot be sent.
    """
    key = (getpass.getpass("API key: ") if sys.stdin.isatty() else sys.stdin.readline()).strip()
    if not key:
        raise Usage(f"no key given: type it, pipe it in, or set {KEY}.")
    return checked_key(key, "standard input")
