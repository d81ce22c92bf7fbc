"""How the command ends: its exit codes, and the exceptions that carry a sentence for the person who started it."""

from enum import IntEnum


class Exit(IntEnum):
    """The documented exit codes; scripts rely on them."""

    OK = 0
    NOTHING_FETCHED = 1
    FAILED = 1
    USAGE = 2
    RESUMABLE = 3
    ENVIRONMENT = 4


class Usage(Exception):
    """The command or its spec asks for something that makes no sense; the message says what and where. Exit code 2."""


class Failed(Exception):
    """What was asked for is not there, was refused, or did not come about; the message says so. Exit code 1."""


class Environment(Exception):
    """The machine lacks something (space, a port, a right); the message says what and what to do. Exit code 4."""


def failure(code: Exit, message: object) -> dict[str, object]:
    """Return the fields that `--json` writes of a command that ended without its answer."""
    return {"end": "failed", "exit_code": int(code), "seconds": 0.0, "message": str(message)}
