"""Confines the extraction process before it reads a page: it can use no sockets, programs or other processes.

A seccomp filter makes the kernel refuse the system calls. A process can install it without privileges, also in a
container.
"""

import ctypes
import platform
import sys
from collections.abc import Mapping
from typing import Final, NamedTuple

_SET_NO_NEW_PRIVS: Final = 38
_SET_SECCOMP: Final = 22
_MODE_FILTER: Final = 2

# The filter's instructions (linux/filter.h, linux/seccomp.h): load a word, jump, return.
_LOAD: Final = 0x20
_IF_EQUAL: Final = 0x15
_IF_AT_LEAST: Final = 0x35
_RETURN: Final = 0x06
_ALLOW: Final = 0x7FFF0000
_REFUSE: Final = 0x00050001
"""The filter's result for a refused system call: the call fails with the error EPERM."""

_NUMBER_AT: Final = 0
_MACHINE_AT: Final = 4
_X32: Final = 0x40000000
"""On x86-64, numbers from this one on are the system calls of another interface (x32)."""


class _Machine(NamedTuple):
    """The numbers of a processor architecture that the filter needs.

    `audit`: the kernel's number of the architecture. `refused`: its numbers of these system calls: socket, socketpair,
    execve, execveat, ptrace, process_vm_readv, process_vm_writev, io_uring_setup, pidfd_getfd.
    """

    audit: int
    refused: tuple[int, ...]


_MACHINES: Final[Mapping[str, _Machine]] = {
    "x86_64": _Machine(0xC000003E, (41, 53, 59, 322, 101, 310, 311, 425, 438)),
    "aarch64": _Machine(0xC00000B7, (198, 199, 221, 281, 117, 270, 271, 425, 438)),
}


class _Instruction(ctypes.Structure):
    _fields_ = (
        ("code", ctypes.c_ushort),
        ("if_true", ctypes.c_ubyte),
        ("if_false", ctypes.c_ubyte),
        ("value", ctypes.c_uint),
    )


class _Program(ctypes.Structure):
    _fields_ = (("size", ctypes.c_ushort), ("instructions", ctypes.POINTER(_Instruction)))


def confine() -> str | None:
    """Forbid this process and its children to open sockets, run programs or access other processes.

    This cannot be undone. Return None, or the reason why it is not possible on this system.
    """
    machine = _MACHINES.get(platform.machine())
    if not sys.platform.startswith("linux") or machine is None:
        return f"no filter of system calls is known for {platform.system()} on {platform.machine()}"
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    program = _filter(machine)
    instructions = (_Instruction * len(program))(*(_Instruction(*line) for line in program))
    if prctl(_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        return f"the kernel does not take PR_SET_NO_NEW_PRIVS (errno {ctypes.get_errno()})"
    if prctl(_SET_SECCOMP, _MODE_FILTER, ctypes.byref(_Program(len(program), instructions)), 0, 0):
        return f"the kernel takes no filter of system calls (errno {ctypes.get_errno()})"
    return None


def _filter(machine: _Machine) -> list[tuple[int, int, int, int]]:
    """Return the seccomp filter as instructions: (code, jump if true, jump if false, value).

    It refuses the calls in `machine.refused`. It also refuses every call in another form than the machine's usual one,
    such as a 32-bit call on x86-64. A jump is the number of instructions to skip.
    """
    refused = machine.refused
    lines = [(_LOAD, 0, 0, _MACHINE_AT), (_IF_EQUAL, 1, 0, machine.audit), (_RETURN, 0, 0, _REFUSE)]
    lines += [(_LOAD, 0, 0, _NUMBER_AT), (_IF_AT_LEAST, len(refused) + 1, 0, _X32)]
    lines += [(_IF_EQUAL, len(refused) - at, 0, number) for at, number in enumerate(refused)]
    return [*lines, (_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _REFUSE)]
