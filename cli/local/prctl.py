"""Linux process attributes, set by prctl(2): death with the parent, adoption of orphans, the shown command line."""

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
"""The number in proc(5) of the field of /proc/self/stat that holds the start address of the arguments. The next fields
are their end, and the start and end of the environment."""


def can_fork() -> bool:
    """Return True if this process may fork and continue in the child: it runs on Linux and has one thread."""
    return sys.platform.startswith("linux") and threads() == 1


def threads() -> int:
    """Return the number of this process's threads, those of libraries included."""
    return len(os.listdir("/proc/self/task"))


def die_with(parent: int) -> None:
    """Have the kernel kill this process (SIGKILL) when its parent ends. If `parent` is not the parent any more, end at
    once.
    """
    _prctl(_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def adopt_descendants(adopt: bool) -> None:
    """Make this process the parent of descendants whose own parent ends; stop that if `adopt` is False."""
    _prctl(_SET_CHILD_SUBREAPER, int(adopt))


def set_command_line(words: Sequence[str]) -> None:
    """Show `words`, separated by spaces, as this process's command line in `ps` and similar tools.

    They overwrite the memory of the original arguments and environment, and are cut to its size. The caller must first
    have set every variable of the environment anew, which copies it elsewhere.
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
