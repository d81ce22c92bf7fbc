"""The port to the machine's clocks."""

from typing import Protocol


class Clock(Protocol):
    """The two clocks of a machine.

    - `elapsed`: seconds since some fixed moment, to measure durations. It is never set back. Time in which the machine
      was suspended counts, if the system measures it.
    - `unix_ms`: the wall clock in Unix ms, to date events. It may be set back.
    """

    def elapsed(self) -> float: ...

    def unix_ms(self) -> int: ...
