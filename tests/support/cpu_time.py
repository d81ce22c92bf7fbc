"""CPU time that a call needs, on machines where other work makes the same call need twice as much."""

import time
from collections.abc import Callable


def least_cpu_s(call: Callable[[], object], *, enough: float, times: int = 5) -> float:
    """Return the least CPU time of up to `times` calls, in seconds. Stop at the first that needs less than `enough`."""
    least = float("inf")
    for _ in range(times):
        begun = time.process_time()
        call()
        least = min(least, time.process_time() - begun)
        if least < enough:
            break
    return least
