"""The code of forked processes: the fork server itself, and the start of a role (a master or worker) that it forks.

In this module, "the command" is the `orb` process, such as `orb crawl`, that started the fork server.

The fork server only imports modules. Before each fork, `_check` verifies that the fork server has one thread and no
unexpected file descriptors. A role gets its own session, environment, output and command line. Python seeds
`random` anew in a forked process, so random numbers do not repeat.
"""

import atexit
import os
import socket
import sys
import threading
import traceback
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Final, NoReturn

import msgspec

from cli.local.fork_server import GO, READY, ForkRequest, preload
from cli.local.prctl import die_with, set_command_line, threads

TITLE: Final = ("orb", "fork-server")
_REQUEST_BYTES: Final = 1 << 20
_MAX_DESCRIPTORS: Final = 16
_FAILED: Final = 70


def serve(requests: socket.socket, parent: int, modules: Sequence[str]) -> NoReturn:
    """Run the fork server: import `modules`, then fork a role for each request from the socket `requests`.

    `parent` is the process id of the command. The fork server ends when the command closes its end of the socket.
    """
    try:
        die_with(parent)
        os.setsid()
        _keep({requests.fileno()})
        null = os.open(os.devnull, os.O_RDWR)
        _redirect(null, null)
        _become(dict(os.environ), TITLE)
        # All objects so far live as long as the process. A garbage collection in a role would only copy their pages.
        refusal = _imported(modules)
        while True:
            data, received, flags, _ = socket.recv_fds(requests, _REQUEST_BYTES, _MAX_DESCRIPTORS)
            if not data:
                os._exit(0)
            cut = "the request is too long" if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC) else ""
            problem = refusal or cut or _check(requests.fileno(), received)
            if not problem:
                problem = _forked(msgspec.json.decode(data, type=ForkRequest), requests, parent, received)
            if problem:
                with suppress(OSError):  # the command no longer waits for the answer
                    os.write(received[0], problem.encode())
            for descriptor in received:
                os.close(descriptor)
    finally:
        os._exit(_FAILED)


def _imported(modules: Sequence[str]) -> str:
    """Import the modules. Return the error as a text, or "" if all were imported."""
    try:
        preload(modules)
    except Exception as error:
        return f"cannot import: {error!r}"
    return ""


def _check(own: int, received: Collection[int]) -> str:
    """Return why a fork would be unsafe, or "" if it is safe.

    A fork is safe if the process has one thread, and no file descriptors except the standard ones, `own` (the fork
    server's socket) and `received` (those of the request).
    """
    expected = {0, 1, 2, own, *received}
    if threads() != 1:
        return f"{threads()} threads"
    if unexpected := _open_descriptors() - expected:
        return f"open descriptors {sorted(unexpected)}"
    return ""


def _forked(request: ForkRequest, requests: socket.socket, parent: int, received: Sequence[int]) -> str:
    """Start a process that runs a role. Return the error as a text, or "" after success.

    The fork server calls this function. The new process becomes a child of the command, not of the fork server.

    - `requests`: the socket of the fork server, which the role closes.
    - `parent`: the process id of the command.
    - `received`: the file descriptors of the request: a channel to the command, the output, and those to inherit.
    """
    adopted, adopting = os.pipe()
    try:
        between = os.fork()
        if between == 0:
            try:
                if os.fork() == 0:
                    requests.close()
                    os.close(adopting)
                    _play(request, parent, adopted, received)
                os._exit(0)
            finally:
                os._exit(_FAILED)
        _, status = os.waitpid(between, 0)
    except OSError as error:
        return f"cannot fork: {error.strerror}"
    finally:
        os.close(adopting)
        os.close(adopted)
    return f"the intermediate process ended with status {status}" if status else ""


def _play(request: ForkRequest, parent: int, adopted: int, received: Sequence[int]) -> NoReturn:
    """Run a role until it ends, and end this process with its exit code.

    - `parent`: the process id of the `orb` command that asked for the role.
    - `adopted`: the read end of a pipe. The role waits until the fork server closes the write end. The fork server does
      that once this process has become a child of the `orb` command.
    - `received`: the file descriptors of the request: a channel to the command, the output, and those to inherit.
    """
    code = 1
    try:
        channel, output, *inherited = received
        os.setsid()
        os.read(adopted, 1)
        die_with(parent)
        _keep({channel, output, *inherited})
        _redirect(os.open(os.devnull, os.O_RDONLY), output)
        _become(request.environment, [*sys.orig_argv[:1], "-m", "orb", *request.arguments])
        sys.argv[1:] = request.arguments
        os.write(channel, READY + str(os.getpid()).encode())
        if os.read(channel, 1) == GO:
            os.close(channel)
            code = _run(request.arguments)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _run(arguments: Sequence[str]) -> int:
    """Run `orb` with `arguments` and return its exit code.

    Before this returns, do what the interpreter does at exit: wait for threads, run exit handlers and flush the output.
    """
    from cli.main import main

    try:
        return main(arguments)
    finally:
        threading._shutdown()  # type: ignore[attr-defined]  # joins threads, those of executors included
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()


def _keep(descriptors: Collection[int]) -> None:
    """Close all file descriptors except `descriptors` and the standard ones.

    Programs that this process starts do not inherit `descriptors`.
    """
    for descriptor in _open_descriptors() - {0, 1, 2, *descriptors}:
        os.close(descriptor)
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)


def _open_descriptors() -> set[int]:
    return {number for number in map(int, os.listdir("/proc/self/fd")) if _is_open(number)}


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def _redirect(source: int, output: int) -> None:
    """Use the descriptor `source` as standard input, and `output` as standard output and error. Then close both."""
    for number, descriptor in enumerate((source, output, output)):
        os.dup2(descriptor, number)
    for descriptor in {source, output} - {0, 1, 2}:
        os.close(descriptor)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115  open as long as the process
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115


def _become(environment: Mapping[str, str], words: Sequence[str]) -> None:
    """Replace the environment variables, and the command line that `ps` shows. `words` is the new command line."""
    os.environ.clear()
    os.environ.update(environment)
    set_command_line(words)
