"""The clocks of this machine."""

import time

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class SystemClock:
    """The clock of this machine (`shared.ports.clock.Clock`).

    `elapsed` includes the time while the machine was suspended, if the system measures it. So grants
    also expire during a suspension.
    """

    def elapsed(self) -> float:
        return time.clock_gettime(_CLOCK)

    def unix_ms(self) -> int:
        return time.time_ns() // 1_000_000
