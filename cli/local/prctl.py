"""Attributes of a Linux process: its death with the parent, adoption of orphans, and its command line in `ps`."""

import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

_SET_PDEATHSIG: Final = 1
_SET_CHILD_SUBREAPER: Final = 36

_ARG_START: Final = 48
"""The number of the field `arg_start` in /proc/self/stat, counted from 1. The fields `arg_end`, `env_start` and
`env_end` follow. They are the addresses of the process's arguments and environment (proc(5))."""


def can_fork() -> bool:
    """Return True if it is safe to fork this process and continue in the child: it is on Linux and has one thread."""
    return sys.platform.startswith("linux") and threads() == 1


def threads() -> int:
    """Return the number of threads of this process. Threads of libraries are included."""
    return len(os.listdir("/proc/self/task"))


def die_with(parent: int) -> None:
    """Make the kernel kill this process (SIGKILL) when its parent ends.

    `parent` is the process id of the parent. If the parent has ended already, this process exits at once.
    """
    _prctl(_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def adopt_descendants(adopt: bool) -> None:
    """Set whether this process adopts its orphans: the descendants whose own parent ends."""
    _prctl(_SET_CHILD_SUBREAPER, int(adopt))


def set_command_line(words: Sequence[str]) -> None:
    """Set the command line that `ps` and similar tools show for this process to `words`, separated by spaces.

    Linux shows the memory in which the process received its arguments. The environment variables usually follow there.
    This function overwrites both, and cuts the text if the memory is too small.

    So call this only after every environment variable was set again, as `os.environ.update` does. A variable that was
    set again is stored in other memory, and is not overwritten.
    """
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    # The first field behind the parenthesis has the number 3.
    arg_start, arg_end, env_start, env_end = map(int, fields[_ARG_START - 3 : _ARG_START + 1])
    end = env_end if env_start == arg_end else arg_end
    shown = os.fsencode(" ".join(words))[: end - arg_start - 1]
    ctypes.memset(arg_start, 0, end - arg_start)
    ctypes.memmove(arg_start, shown, len(shown))
    if len(shown) < arg_end - arg_start - 1:
        # The kernel shows text up to the first NUL, and not the whole space, if the last byte of the arguments is set.
        ctypes.memset(arg_end - 1, ord("."), 1)


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
