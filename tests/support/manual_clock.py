"""A clock that is turned by hand."""

from shared.adapters.local.clock import SystemClock


class ManualClock:
    """Its elapsed seconds are `now`; the time of day is the system's."""

    def __init__(self) -> None:
        self.now = 1000.0

    def elapsed(self) -> float:
        return self.now

    def unix_ms(self) -> int:
        return SystemClock().unix_ms()
