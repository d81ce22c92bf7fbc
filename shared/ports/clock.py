"""The port to time."""

from typing import Protocol


class Clock(Protocol):
    """`elapsed` measures durations in seconds: never set back, and counting suspended time. `unix_ms` dates events."""

    def elapsed(self) -> float: ...

    def unix_ms(self) -> int: ...
