"""Finds the command that the arguments name, runs it, and turns what people can put right into one sentence."""

import argparse
import errno
import os
import sys
from collections.abc import Collection, Sequence
from importlib import import_module
from types import ModuleType
from typing import Final, Protocol, cast

from cli.exits import Environment, Exit, Failed, Usage, failure
from cli.outgoing import Unwritten, marked_output
from cli.parser import Parser, meant
from shared.domain.errors import Transient, Unusable
from shared.domain.software import NAME, VERSION


class Command(Protocol):
    """What a command's module offers."""

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Declare the command's arguments."""

    def run(self, arguments: argparse.Namespace) -> int:
        """Do it; the exit code. Raises Usage or Environment with a sentence for people."""


COMMANDS: Final = {
    "crawl": ("cli.crawl", "crawl from URLs or a spec into a folder; the same again resumes"),
    "show": ("cli.show", "what a crawl has done, or what became of one URL, and why"),
    "export": ("cli.export", "pages, URLs or links of a crawl as JSON Lines, CSV or Parquet"),
    "warc": ("cli.warc", "the stored body of a page"),
    "up": ("cli.up", "a whole cluster on this machine; the same again goes on"),
    "key": ("cli.key", "make an API key on the database itself, for who has lost the others"),
    "master": ("cli.member", "be a master of a cluster: etcd, NATS and a database are told by flags or ORB_*"),
    "worker": ("cli.member", "be a worker of a cluster: etcd and NATS are told by flags or ORB_*"),
    "migrate": ("cli.migrate", "bring a cluster's database to this release's schema, or say what is missing"),
    "db": ("cli.database", "check a cluster's database, or copy it to another engine"),
    "backup": ("cli.backup", "a consistent copy of a cluster that goes on working"),
    "restore": ("cli.restore", "a fresh cluster from a backup"),
    "config": ("cli.config", "show the settings that a master or worker would have here, and where each is said"),
    "ctl": ("cli.ctl.command", "ask a cluster: get, apply, start, seeds, events, explain and more; over its REST API"),
    "openapi": ("cli.document", "print the document of the REST API (OpenAPI 3.1)"),
    "completion": ("cli.completion", "print the completion script of bash, zsh or fish"),
    "version": ("cli.version", "print the versions of orb and of what it runs on"),
    "test": ("cli.develop", "run the short set of tests, or all of them: --all; arguments go to pytest (in a clone)"),
    "lint": ("cli.develop", "check style, types and the direction of imports (in a clone)"),
    "faults": ("cli.develop", "run every fault test, or explore: --seed N --rounds R, --soak MINUTES (in a clone)"),
    "bench": ("cli.develop", "run a benchmark by name; without one, list them (in a clone)"),
    "lock": ("cli.develop", "renew the lock files from pyproject.toml (in a clone)"),
}
"""Every command: its module, imported only when asked for, and its line in the help."""

WITH_JSON: Final = frozenset({"crawl", "show", "config", "db", "up"})
"""Commands with a flag `--json`."""

HIDDEN: Final = {"_master": ("cli.roles", ""), "_worker": ("cli.roles", "")}
"""What `orb crawl` starts, and nobody else; not in the help."""

_LOGGING: Final = frozenset(
    (
        "crawl",
        "show",
        "export",
        "warc",
        "up",
        "key",
        "master",
        "worker",
        "migrate",
        "db",
        "backup",
        "restore",
        "ctl",
        *HIDDEN,
    )
)
"""The commands that load structlog."""

_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""What the system says where a file takes no more; of standard output it says EIO as well."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command named by `argv` (by default the process's arguments); returns the exit code, never exits."""
    with marked_output():
        try:
            code = _ended(list(sys.argv[1:] if argv is None else argv))
            sys.stdout.flush()
            return code
        except BrokenPipeError:  # the reader of our output left, as `head` does
            _leave_output()
            return 141
        except OSError as error:
            ours = isinstance(error, Unwritten)
            if error.errno not in _NO_ROOM and not (ours and error.errno == errno.EIO):
                raise
            if ours:
                _leave_output()
            _say(_unwritten(error))
            return Exit.ENVIRONMENT


def _unwritten(error: OSError) -> str:
    """What could not be written, and what to do."""
    if isinstance(error, Unwritten):
        return f"not all of the output could be written ({error.strerror}); make room where it goes, and ask again."
    where = "a file" if error.filename is None else error.filename
    return f"{where} could not be written ({error.strerror}); make room where it lies, and ask again."


def _ended(arguments: list[str]) -> int:
    """The exit code of the command, after a sentence where it did not end well. OSError where nobody takes what it
    writes."""
    try:
        return _run(arguments)
    except Usage as problem:
        return _failed(arguments, Exit.USAGE, problem)
    except Failed as problem:
        return _failed(arguments, Exit.FAILED, problem)
    except (Environment, Unusable, Transient) as problem:
        return _failed(arguments, Exit.ENVIRONMENT, problem)
    except KeyboardInterrupt:  # the commands that can go on later say so themselves
        return 130
    except SystemExit as asked:  # argparse, after --help
        return Exit.OK if asked.code is None else int(asked.code)


def _failed(arguments: Sequence[str], code: Exit, problem: object) -> Exit:
    """Say what went wrong; with `--json` also as an object on standard output, which has nothing else by then."""
    _say(problem)
    flags = arguments[: arguments.index("--")] if "--" in arguments else arguments
    if flags and flags[0] in WITH_JSON and "--json" in flags:
        import json  # most commands need none

        print(json.dumps(failure(code, problem)))
    return code


def _say(problem: object) -> None:
    """One sentence on stderr; where it takes none (a log on a full disk), the exit code has to say it alone."""
    try:
        print(f"orb: {problem}", file=sys.stderr, flush=True)
    except OSError:
        # What is still to be written goes nowhere: the interpreter would end with a code of its own.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def _leave_output() -> None:
    """What is still to be written goes nowhere: the interpreter would try once more at its end, and complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def parser_of(chosen: Collection[str]) -> argparse.ArgumentParser:
    """The parser of the whole command line, in which only the commands in `chosen` have their arguments: declaring
    those of a command imports it."""
    parser = Parser(prog="orb", description=f"{NAME} {VERSION}: a distributed web crawler.", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"orb {VERSION}")
    named = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command", parser_class=Parser)
    for name, (module, summary) in (COMMANDS if HIDDEN.keys().isdisjoint(chosen) else HIDDEN).items():
        subparser = named.add_parser(
            name, help=summary, description=summary, allow_abbrev=False, add_help=name in chosen
        )
        if name in chosen:
            cast(Command, import_module(module)).configure(subparser)
    return parser


def _load_logging() -> None:
    """Import structlog without rich and pygments, which it loads if it can: that takes each process 60 ms of CPU. They
    serve coloured tracebacks only, which no log of ours has. A display imports rich by itself."""
    if "structlog" in sys.modules or "rich" in sys.modules:
        return
    sys.modules["rich"] = cast(ModuleType, None)  # what Python takes for a module that is not there
    try:
        import_module("structlog")
    finally:
        del sys.modules["rich"]


def _run(argv: list[str]) -> int:
    chosen = argv[0] if argv and (argv[0] in COMMANDS or argv[0] in HIDDEN) else None
    if chosen in _LOGGING:
        _load_logging()
    parser = parser_of(() if chosen is None else (chosen,))
    if chosen is None and argv and not argv[0].startswith("-"):
        raise Usage(f"there is no command {argv[0]!r}{meant(argv[0], COMMANDS, before='orb ')}; see `orb --help`")
    parsed = parser.parse_args(argv)
    if chosen is None:
        parser.print_help()
        return Exit.USAGE
    module, _ = COMMANDS[chosen] if chosen in COMMANDS else HIDDEN[chosen]
    return cast(Command, import_module(module)).run(parsed)
