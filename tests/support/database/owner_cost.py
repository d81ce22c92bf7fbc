"""CPU and elapsed time of an owner's steps, a database server's part included."""

import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field

import psutil


@dataclass(slots=True)
class Step:
    """What some transactions took together: seconds of CPU (the server's too) and elapsed, URLs; and each one's ms."""

    cpu_s: float = 0.0
    wall_s: float = 0.0
    urls: int = 0
    each_ms: list[float] = field(default_factory=list)

    def cpu_us(self) -> float:
        """Microseconds of CPU a URL."""
        return self.cpu_s / max(self.urls, 1) * 1e6

    def wall_us(self) -> float:
        """Elapsed microseconds a URL."""
        return self.wall_s / max(self.urls, 1) * 1e6

    def percentile(self, part: float) -> float:
        """Milliseconds below which this part of the transactions took."""
        return sorted(self.each_ms)[min(len(self.each_ms) - 1, int(part * len(self.each_ms)))] if self.each_ms else 0.0


class Meter:
    """CPU of this process and of a server's, with the processes that it has and had."""

    def __init__(self, server: int | None) -> None:
        self._server = psutil.Process(server) if server is not None else None

    def cpu_s(self) -> float:
        """Seconds so far."""
        return time.process_time() + (tree_cpu_s(self._server) if self._server is not None else 0.0)

    async def timed(self, step: Step, call: Callable[[], Awaitable[int]]) -> int:
        """Run it and add to the step; the URLs that it says it did."""
        cpu, begun = self.cpu_s(), time.perf_counter()
        urls = await call()
        elapsed = time.perf_counter() - begun
        step.cpu_s += self.cpu_s() - cpu
        step.wall_s += elapsed
        step.urls += urls
        step.each_ms.append(elapsed * 1000)
        return urls


def tree_cpu_s(server: psutil.Process) -> float:
    """Return the seconds of CPU of a process and of its children, also of those that have ended."""
    alive = 0.0
    for child in server.children():
        with suppress(psutil.NoSuchProcess):  # it has ended since: then the server has its time
            times = child.cpu_times()
            alive += times.user + times.system
    times = server.cpu_times()
    return float(times.user + times.system + times.children_user + times.children_system + alive)
