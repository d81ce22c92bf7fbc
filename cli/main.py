"""Runs the `orb` command that the command line names.

If the user can fix an error, the program prints one sentence about the error instead of a traceback.
"""

import argparse
import errno
import gc
import os
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any, Final, NoReturn, Protocol, cast

from cli.terminal.exits import Environment, Exit, Failed, Usage, failure
from cli.terminal.stdout import StdoutUnwritable, marked_output, open_closed_streams
from shared.domain.errors import Transient, Unusable
from shared.domain.software import NAME, VERSION
from shared.domain.suggestions import nearest


class Parser(argparse.ArgumentParser):
    """An argument parser that raises Usage for an invalid argument, with a suggestion if a valid one is similar.

    Names and URLs may come before and after flags: `create docs --max-pages 9 URL`.
    """

    def error(self, message: str) -> NoReturn:
        raise Usage(f"{message}; see `{self.prog} --help`")

    # argparse's own types are narrower than the arguments it passes.
    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[argparse.Namespace, list[str]]:
        parsed, left = super().parse_known_args(args, namespace)
        if left:
            end = left.index("--") if "--" in left else len(left)
            flags = [word for word in left[:end] if word.startswith("-") and word != "-"]
            if flags:
                self.error("; ".join(map(self._no_flag, flags)))
            self._add_words(parsed, left[:end] + left[end + 1 :])
        return parsed, []

    def _add_words(self, parsed: argparse.Namespace, words: list[str]) -> None:
        """Add words after a flag to the positional arguments that take any number of words, or that have none yet.

        argparse gives such an argument no word if its only words come after a flag. If the command has a flag for
        text, only URLs are added: other words are probably the rest of a text without quotes.
        """
        odd = next((word for word in words if "://" not in word), None)
        if odd is not None and any(action.metavar == "TEXT" for action in self._actions):
            self.error(f"unexpected argument {odd!r}: write names before flags, and quotes around a text")
        for action in self._actions:
            if action.option_strings or not words:
                continue
            if action.nargs == "?" and getattr(parsed, action.dest) is None:
                setattr(parsed, action.dest, words.pop(0))
            elif action.nargs in ("*", "+"):
                setattr(parsed, action.dest, [*getattr(parsed, action.dest), *words])
                words = []
        if words:
            self.error(f"unexpected argument {words[0]!r}")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        known = [str(each) for each in action.choices]
        if isinstance(action, argparse._SubParsersAction):
            self.error(f"`{self.prog}` has no command {value!r}{meant(str(value), known, before=f'{self.prog} ')}")
        problem = f"expected one of {', '.join(known)}, got {value!r}"
        raise argparse.ArgumentError(action, problem + meant(str(value), known))

    def _no_flag(self, word: str) -> str:
        name = word.partition("=")[0]
        known = [flag for action in self._actions for flag in action.option_strings]
        return f"there is no flag {name}{meant(name, known)}"


def meant(name: str, known: Iterable[str], *, before: str = "") -> str:
    """Return ` (did you mean ...?)` with the name in `known` that is closest to `name`. Return "" if none is close.

    `before` is text that precedes the suggested name, such as `orb `.
    """
    close = nearest(name, known)
    return "" if close is None else f" (did you mean `{before}{close}`?)"


class CommandModule(Protocol):
    """The functions that the module of each command of `orb` must define."""

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the command's arguments to `parser`."""

    def run(self, arguments: argparse.Namespace) -> int:
        """Run the command and return its exit code. Raise Usage, Failed or Environment with a sentence for the user."""


COMMANDS: Final = {
    "crawl": ("cli.local.crawl", "crawl from URLs or a spec into a folder; repeat the command to resume"),
    "show": ("cli.data.show", "show the results of a crawl, or the state of one URL and its reason"),
    "export": ("cli.data.export", "export pages, URLs, links or items of a crawl as JSON Lines, CSV or Parquet"),
    "warc": ("cli.data.warc", "print the stored body of a page"),
    "replay": ("cli.data.replay", "print the commands that show a crawl's archive in pywb"),
    "up": ("cli.local.up", "run a whole cluster on this machine; repeat the command to restart it"),
    "key": ("cli.admin.key", "create an API key directly in the database, if all others are lost"),
    "master": ("cli.local.member", "run a master of a cluster; set etcd, NATS and the database by flags or ORB_*"),
    "worker": ("cli.local.member", "run a worker of a cluster; set etcd and NATS by flags or ORB_*"),
    "migrate": ("cli.admin.migrate", "upgrade a cluster's database to this release's schema, or list what is missing"),
    "db": ("cli.admin.database", "check a cluster's database, or copy it to another engine"),
    "backup": ("cli.admin.backup", "make a consistent backup of a running cluster"),
    "restore": ("cli.admin.restore", "restore a backup into a new cluster"),
    "config": ("cli.admin.config", "show the settings that a master or worker would use here, and the source of each"),
    "ctl": (
        "cli.ctl.command",
        "control a cluster over its REST API: get, apply, start, seeds, events, explain and more",
    ),
    "openapi": ("cli.dev.document", "print the OpenAPI 3.1 document of the REST API"),
    "terraform": ("cli.dev.terraform", "install the Terraform provider for local use (in a clone)"),
    "completion": ("cli.dev.completion", "print the completion script of bash, zsh or fish"),
    "version": ("cli.dev.version", "print the versions of orb and of its libraries"),
    "test": (
        "cli.dev.develop",
        "run the short set of tests, or all of them: --all; arguments go to pytest (in a clone)",
    ),
    "lint": ("cli.dev.develop", "check style, types and the direction of imports (in a clone)"),
    "faults": ("cli.dev.develop", "run every fault test, or explore: --seed N --rounds R, --soak MINUTES (in a clone)"),
    "bench": ("cli.dev.develop", "run a benchmark by name; without one, list them (in a clone)"),
    "lock": ("cli.dev.develop", "renew the lock files from pyproject.toml (in a clone)"),
}
"""Every command in the help: its module, which is imported only when needed, and its line in the help."""

WITH_JSON: Final = frozenset({"crawl", "show", "config", "db", "up"})
"""Commands with a flag `--json`."""

HIDDEN: Final = {"_master": ("cli.local.roles", ""), "_worker": ("cli.local.roles", "")}
"""Commands that only `orb crawl` starts; they are not in the help."""

_LOGGING: Final = (COMMANDS.keys() | HIDDEN.keys()) - frozenset(
    (
        "show",
        "warc",
        "replay",
        "config",
        "openapi",
        "terraform",
        "completion",
        "version",
        "test",
        "lint",
        "faults",
        "bench",
        "lock",
    )
)
"""The commands that use structlog. For these commands `main` first imports structlog, then the command's module."""

_ASKING: Final = frozenset(("up", "master", "ctl"))
"""The commands that use httpx. For these commands `main` first imports httpx, then the command's module."""

_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""The values of `errno` that a write to a full disk can raise."""
# A write to standard output can also raise EIO.


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that `argv` names and return its exit code. None means the arguments of this process.

    If the user can fix an error, print a message to stderr. Other exceptions propagate. This never calls `sys.exit`.
    """
    open_closed_streams()
    with marked_output():
        try:
            code = _ended(list(sys.argv[1:] if argv is None else argv))
            sys.stdout.flush()
            return code
        except BrokenPipeError:  # the reader of our output closed it, as `head` does
            _leave_output()
            return 141
        except OSError as error:
            ours = isinstance(error, StdoutUnwritable)
            if error.errno not in _NO_ROOM and not (ours and error.errno == errno.EIO):
                raise
            if ours:
                _leave_output()
            _say(_unwritten(error))
            return Exit.ENVIRONMENT


def _unwritten(error: OSError) -> str:
    """Return a sentence that names the file or output that could not be written, and what to do."""
    if isinstance(error, StdoutUnwritable):
        return f"the output was cut short ({error.strerror}); make room where it goes, and run the command again."
    where = "a file" if error.filename is None else error.filename
    return f"{where} could not be written ({error.strerror}); make room there, and run the command again."


def _ended(arguments: list[str]) -> int:
    """Run the command and return its exit code. If the user can fix an error, print only its message.

    Any other exception propagates, including an OSError from writing the output.
    """
    try:
        return _run(arguments)
    except Usage as problem:
        return _failed(arguments, Exit.USAGE, problem)
    except Failed as problem:
        return _failed(arguments, Exit.FAILED, problem)
    except (Environment, Unusable, Transient) as problem:
        return _failed(arguments, Exit.ENVIRONMENT, problem)
    except KeyboardInterrupt:  # a crawl that has begun prints by itself how to resume
        if arguments[:1] != ["crawl"]:
            return 130
        return _failed(arguments, Exit.RESUMABLE, "stopped before anything was begun; run the same command again.")
    except SystemExit as asked:  # argparse, after --help
        return Exit.OK if asked.code is None else int(asked.code)


def _failed(arguments: Sequence[str], code: Exit, problem: object) -> Exit:
    """Print the error `problem` to stderr and return `code`.

    If the command was called with `--json`, also print a JSON object with the error to standard output.
    """
    _say(problem)
    flags = arguments[: arguments.index("--")] if "--" in arguments else arguments
    if flags and flags[0] in WITH_JSON and "--json" in flags:
        import json  # most commands need none

        print(json.dumps(failure(code, problem)))
    return code


def _say(problem: object) -> None:
    """Print one sentence to stderr. Discard the sentence if stderr cannot be written, for example on a full disk."""
    try:
        print(f"orb: {problem}", file=sys.stderr, flush=True)
    except OSError:
        # Discard the rest: otherwise the interpreter would fail at exit with its own code.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def _leave_output() -> None:
    """Redirect standard output to /dev/null. Otherwise the interpreter would retry the failed output at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def parser_of(chosen: Collection[str]) -> argparse.ArgumentParser:
    """Return the parser of the whole command line.

    Only the commands in `chosen` get their arguments and have their modules imported.
    """
    parser = Parser(prog="orb", description=f"{NAME} {VERSION}: a distributed web crawler.", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"orb {VERSION}")
    named = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command", parser_class=Parser)
    for name, (module, summary) in (COMMANDS if HIDDEN.keys().isdisjoint(chosen) else HIDDEN).items():
        subparser = named.add_parser(
            name, help=summary, description=summary, allow_abbrev=False, add_help=name in chosen
        )
        if name in chosen:
            cast(CommandModule, import_module(module)).configure(subparser)
    return parser


@contextmanager
def _importing() -> Iterator[None]:
    """Disable garbage collection during the `with` block, which imports modules.

    Almost all objects that an import creates live as long as the process, so a collection frees little and costs time.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _load_undrawn(*modules: str) -> None:
    """Import `modules`, and prevent them from importing the packages rich and pygments.

    structlog and httpx would import these packages for features that this program does not use. That would cost each
    process 60 ms of CPU time.
    """
    hidden = [name for name in ("rich", "pygments") if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden, cast(ModuleType, None)))  # Python treats None as an absent module
    try:
        for module in modules:
            import_module(module)
    finally:
        for name in hidden:
            del sys.modules[name]


def _run(argv: list[str]) -> int:
    chosen = argv[0] if argv and (argv[0] in COMMANDS or argv[0] in HIDDEN) else None
    with _importing():
        if chosen in _LOGGING:
            _load_undrawn("structlog", *(("httpx",) if chosen in _ASKING else ()))
        parser = parser_of(() if chosen is None else (chosen,))
    if chosen is None and argv and not argv[0].startswith("-"):
        raise Usage(f"there is no command {argv[0]!r}{meant(argv[0], COMMANDS, before='orb ')}; see `orb --help`")
    parsed = parser.parse_args(argv)
    if chosen is None:
        parser.print_help()
        return Exit.USAGE
    module, _ = COMMANDS[chosen] if chosen in COMMANDS else HIDDEN[chosen]
    return cast(CommandModule, import_module(module)).run(parsed)
