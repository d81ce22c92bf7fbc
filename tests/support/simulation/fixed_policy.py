"""The simplest recrawl policy of the benchmark, which the others begin with."""

from typing import Final

from tests.support.simulation.changing_web import DAY_S, ChangingWeb, Page, WebHost
from tests.support.simulation.recrawl_run import Record

MIN_S: Final = 3600.0
MAX_S: Final = 180 * DAY_S


def part_of(page: Page) -> float:
    """Return a number in [0, 1) of a page, which spreads its first fetches."""
    return page.number * 0.6180339887 % 1.0


class Fixed:
    """Every page after the same time, as long as the budget permits. Halving and the others begin with it, too."""

    def __init__(self, web: ChangingWeb, requests_per_day: int) -> None:
        self.every_s = len(web.pages) / requests_per_day * DAY_S

    def first(self, page: Page, now: float) -> Record:
        return Record(now + part_of(page) * self.every_s, now)

    def compared(self, page: Page, record: Record, *, changed: bool, now: float) -> None:
        record.checked_s, record.due_s = now, now + self.every_s

    def failed(self, page: Page, record: Record, now: float) -> None:
        record.due_s = now + self.every_s

    def sitemap_first(self, host: WebHost) -> Record | None:
        return None

    def sitemap_read(
        self, host: WebHost, record: Record, listed: list[tuple[Page, float]], records: dict[int, Record], now: float
    ) -> list[Page]:
        return []

    def tick(self, sent: list[int], now: float) -> None:
        return

    def restarted(self, pages: list[Page], records: dict[int, Record], sent: list[int]) -> None:
        return
