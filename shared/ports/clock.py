"""The port to time."""

from typing import Protocol


class Clock(Protocol):
    """`elapsed` measures (seconds, never set, counts time the machine was suspended); `unix_ms` only says when."""

    def elapsed(self) -> float: ...

    def unix_ms(self) -> int: ...
