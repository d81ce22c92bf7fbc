"""The extraction process: `python -m workers.extract.process CPU_S MEMORY_BYTES`.

It reads tasks from standard input, writes the reply to each to standard output, and exits at the end of input. Each
task and reply is a frame: four bytes of length (big-endian) and a MessagePack value. The first frame that the process
writes is a text: why it could not be confined (`sandbox`), empty if it is confined.

If a page takes more than `CPU_S` of CPU time, the kernel ends the process by SIGPROF. This also stops code that is not
Python. If the process needs more than `MEMORY_BYTES` of address space, it exits with `OUT_OF_MEMORY`.
"""

import os
import resource
import signal
import sys
from functools import lru_cache
from typing import BinaryIO, Final

import msgspec

from shared.domain.crawl.item_rules import ItemLimits, ItemRule
from workers.extract.rules import Extraction, ExtractionInput, extract
from workers.extract.sandbox import confine

LENGTH: Final = 4
OUT_OF_MEMORY: Final = 77
"""The exit code of a process for which a page took too much memory."""


class Task(msgspec.Struct, frozen=True, array_like=True):
    """A request to the extraction process: a page, the rules that apply to it, and the limits on its items.

    `rules`: a JSON list of ItemRule. Equal lists are decoded only once.
    """

    page: ExtractionInput
    rules: bytes
    limits: ItemLimits


_task: Final = msgspec.msgpack.Decoder(Task)


def framed(value: msgspec.Struct | str) -> bytes:
    """Return the value as a frame: four bytes of length (big-endian), then the value in MessagePack."""
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
    """Read tasks from `tasks` and write an Extraction for each to `answers`, until the end of input.

    `cpu_s`: the limit of CPU time for each page. The kernel ends the process if a page exceeds it.
    """
    while len(head := tasks.read(LENGTH)) == LENGTH:
        size = int.from_bytes(head)
        data = tasks.read(size)
        if len(data) != size:
            return
        answers.write(framed(_answer(data, cpu_s)))
        answers.flush()


def main() -> None:
    """Run the extraction process: confine it, then extract items from pages until the end of standard input.

    Read the limits from the command line. Exit with OUT_OF_MEMORY if a page needs too much memory.
    """
    cpu_s, memory = float(sys.argv[1]), int(sys.argv[2])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the worker handles a terminal's Ctrl-C by draining
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
        os._exit(0)  # the worker no longer waits for the answer


if __name__ == "__main__":
    main()
