"""The port to the machine's clocks."""

from typing import Protocol


class Clock(Protocol):
    """The two clocks of a machine.

    `elapsed`: seconds since some fixed moment, to measure durations. It is never set back, and suspended time counts.
    `unix_ms`: the wall clock in Unix ms, to date events.
    """

    def elapsed(self) -> float: ...

    def unix_ms(self) -> int: ...
