"""The clocks of this machine."""

import time

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class SystemClock:
    """The clock of this machine (`shared.ports.clock.Clock`). Suspended time counts, if the system measures it.

    So the grants of a worker expire while its machine is suspended.
    """

    def elapsed(self) -> float:
        return time.clock_gettime(_CLOCK)

    def unix_ms(self) -> int:
        return time.time_ns() // 1_000_000
