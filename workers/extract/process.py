"""The process that takes pages apart: `python -m workers.extract.process CPU_S MEMORY_BYTES`.

It reads tasks from its standard input and answers each on its standard output, one after another, and ends when its
input does. Frames are four bytes of length (big-endian) and a MessagePack value. A page that takes more than `CPU_S`
of the processor is ended by the kernel with the process (SIGPROF, which also stops code that is not Python); one that
takes more than `MEMORY_BYTES` ends it with `OUT_OF_MEMORY`. Its first frame is a text: empty, or why it could not give
up what it does not need (`confined`).
"""

import os
import resource
import signal
import sys
from functools import lru_cache
from typing import BinaryIO, Final

import msgspec

from shared.domain.item_rules import ItemLimits, ItemRule
from workers.extract.confined import confine
from workers.extract.rules import Extraction, Page, extract

LENGTH: Final = 4
OUT_OF_MEMORY: Final = 77
"""The exit code of a process that a page gave too much to hold."""


class Task(msgspec.Struct, frozen=True, array_like=True):
    """A page and what to take out of it. `rules`: the rules that apply, as JSON; one set is compiled once."""

    page: Page
    rules: bytes
    limits: ItemLimits


_task: Final = msgspec.msgpack.Decoder(Task)


def framed(value: msgspec.Struct | str) -> bytes:
    """The value as a frame."""
    data = msgspec.msgpack.encode(value)
    return len(data).to_bytes(LENGTH) + data


@lru_cache(64)
def _rules(data: bytes) -> tuple[ItemRule, ...]:
    return msgspec.json.decode(data, type=tuple[ItemRule, ...])


def _answer(data: bytes, cpu_s: float) -> Extraction:
    task = _task.decode(data)
    signal.setitimer(signal.ITIMER_PROF, cpu_s)
    try:
        return extract(task.page, _rules(task.rules), task.limits)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def serve(tasks: BinaryIO, answers: BinaryIO, cpu_s: float) -> None:
    """Answer until there are no more tasks."""
    while len(head := tasks.read(LENGTH)) == LENGTH:
        size = int.from_bytes(head)
        data = tasks.read(size)
        if len(data) != size:
            return
        answers.write(framed(_answer(data, cpu_s)))
        answers.flush()


def main() -> None:
    """Be that process."""
    cpu_s, memory = float(sys.argv[1]), int(sys.argv[2])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is the worker's, which drains
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    unconfined = confine()
    try:
        sys.stdout.buffer.write(framed(unconfined or ""))
        sys.stdout.buffer.flush()
        serve(sys.stdin.buffer, sys.stdout.buffer, cpu_s)
    except MemoryError:
        os._exit(OUT_OF_MEMORY)
    except BrokenPipeError:
        os._exit(0)  # nobody waits for the answer any more


if __name__ == "__main__":
    main()
