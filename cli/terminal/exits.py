"""The exit codes of the command, and the exceptions with a sentence for the user."""

from enum import IntEnum


class Exit(IntEnum):
    """The exit codes of `orb`, as documented; scripts rely on them."""

    OK = 0
    NOTHING_FETCHED = 1
    FAILED = 1
    DIFFERENT = 1
    USAGE = 2
    RESUMABLE = 3
    ENVIRONMENT = 4


class Usage(Exception):
    """The user's command or spec is not valid. The message says what is wrong and where. Exit code 2."""


class Failed(Exception):
    """The request was refused, failed, or named something that does not exist. The message says which. Exit code 1."""


class Environment(Exception):
    """This machine lacks something (space, a port, a right). The message says what, and what to do. Exit code 4."""


def failure(code: Exit, message: object) -> dict[str, object]:
    """Return the fields of the JSON object that `--json` prints for a command that did not begin."""
    return {
        "end": "interrupted" if code is Exit.RESUMABLE else "failed",
        "exit_code": int(code),
        "seconds": 0.0,
        "message": str(message),
    }
