"""The exit codes of `orb`, and the exceptions whose message is a sentence for the user."""

from enum import IntEnum


class Exit(IntEnum):
    """The exit codes of `orb`. They are documented, and scripts use them."""

    OK = 0
    NOTHING_FETCHED = 1
    FAILED = 1
    DIFFERENT = 1
    USAGE = 2
    RESUMABLE = 3
    ENVIRONMENT = 4


class Usage(Exception):
    """Raised if the user's command or spec is not valid. The message says what is wrong and where. Exit code 2."""


class Failed(Exception):
    """Raised if a request was refused, failed, or named something that does not exist. Exit code 1.

    The message says what happened.
    """


class Environment(Exception):
    """Raised if something outside this program is missing, such as disk space, a port or a running server. Exit code 4.

    The message says what is missing and what to do.
    """


def failure(code: Exit, message: object) -> dict[str, object]:
    """Return the JSON object that `--json` prints for a command that failed before it began its work."""
    return {
        "end": "interrupted" if code is Exit.RESUMABLE else "failed",
        "exit_code": int(code),
        "seconds": 0.0,
        "message": str(message),
    }
