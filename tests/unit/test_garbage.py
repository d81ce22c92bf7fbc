"""Full collections: when they are due, and that nothing but the checks starts one."""

import asyncio
import gc

import pytest

from shared.runtime import garbage
from shared.runtime.garbage import AGED, FORCED_S, IDLE, RESTED_S, YOUNG, collecting_when_idle, is_due


@pytest.mark.parametrize(
    ("aged", "since_s", "share", "due"),
    [
        (AGED - 1, FORCED_S, 0.0, False),
        (AGED, RESTED_S, 0.0, True),
        (AGED, RESTED_S - 1, 0.0, False),
        (AGED, FORCED_S - 1, IDLE, False),
        (AGED, FORCED_S, 1.0, True),
    ],
)
def test_full_collection_waits_for_an_idle_loop_within_bounds(
    aged: int, since_s: float, share: float, due: bool
) -> None:
    assert is_due(aged, since_s, share) is due


def _full_collections() -> int:
    return int(gc.get_stats()[2]["collections"])


@pytest.mark.parametrize(("rested_s", "pause_s"), [(0.0, 0.01), (60.0, 0.0)])
def test_only_a_check_starts_a_full_collection(
    monkeypatch: pytest.MonkeyPatch, rested_s: float, pause_s: float
) -> None:
    """On an idle loop and on one that never rests."""
    monkeypatch.setattr(garbage, "RESTED_S", rested_s)
    monkeypatch.setattr(garbage, "FORCED_S", 0.0)

    async def story() -> tuple[int, int]:
        with collecting_when_idle(every_s=0.01):
            before = _full_collections()
            for _ in range(AGED):
                gc.collect(0)
            kept = [[n] for n in range(200_000)]  # enough for Python's own full collection
            during = _full_collections() - before
            while _full_collections() == before:  # noqa: ASYNC110  a collection is no event
                await asyncio.sleep(pause_s)
            del kept
            return during, _full_collections() - before

    thresholds = gc.get_threshold()
    assert asyncio.run(story()) == (0, 1)
    assert gc.get_threshold() == thresholds


def test_youngest_generation_is_collected_after_a_bounded_number_of_objects() -> None:
    async def counted() -> int:
        with collecting_when_idle():
            gc.collect(0)
            before = int(gc.get_stats()[0]["collections"])
            kept = [[n] for n in range(20 * YOUNG)]
            during = int(gc.get_stats()[0]["collections"]) - before
            assert len(kept) == 20 * YOUNG
            return during

    assert asyncio.run(counted()) == pytest.approx(20, abs=1)
