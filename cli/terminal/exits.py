"""The exit codes of the command, and the exceptions with a sentence for the user."""

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
    """The command or its spec is not valid; the message says what and where. Exit code 2."""


class Failed(Exception):
    """The request was refused, failed, or named something that does not exist. The message says which. Exit code 1."""


class Environment(Exception):
    """The machine lacks something (space, a port, a right); the message says what and what to do. Exit code 4."""


def failure(code: Exit, message: object) -> dict[str, object]:
    """Return the fields that `--json` prints for a command that failed."""
    return {"end": "failed", "exit_code": int(code), "seconds": 0.0, "message": str(message)}
