"""The machine's clocks."""

import time

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class SystemClock:
    """`shared.ports.clock.Clock` of this machine. It counts time in which the machine is suspended, if the system can.

    So a grant expires while its holder is suspended.
    """

    def elapsed(self) -> float:
        return time.clock_gettime(_CLOCK)

    def unix_ms(self) -> int:
        return time.time_ns() // 1_000_000
