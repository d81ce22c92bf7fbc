"""Recrawl policies that know more than a crawler can: bounds to compare the others with."""

from math import sqrt

from shared.domain.frontier.recrawl import wait_s, within
from tests.support.simulation.changing_web import DAY_S, ChangingWeb, Page, Sitemap
from tests.support.simulation.fixed_policy import MAX_S, MIN_S, Fixed, part_of
from tests.support.simulation.recrawl_run import Record


class SignsKnown(Fixed):
    """An estimate of what a crawler could reach at most: it knows what pages' pasts and sitemaps could ever tell.

    It has the true rates. It learns at once, and without a request, of each change that a right sitemap lists, and
    fetches the page if the change is worth the price. Other pages are due by value against price.
    """

    def __init__(self, web: ChangingWeb, requests_per_day: int) -> None:
        super().__init__(web, requests_per_day)
        rates = [(page.true_rate(0.0), is_listed(page)) for page in web.pages]
        low, high = 1.0, 2.0**40
        while high / low > 1.0001:
            price_s = sqrt(low * high)
            needed = sum(_requests(rate, price_s, listed=listed) for rate, listed in rates)
            low, high = (price_s, high) if needed * DAY_S > requests_per_day else (low, price_s)
        self._price_s = high

    def first(self, page: Page, now: float) -> Record:
        record = Record(now, now)
        self.compared(page, record, changed=False, now=now)
        if not is_listed(page):
            record.due_s = now + part_of(page) * (record.due_s - now)
        return record

    def compared(self, page: Page, record: Record, *, changed: bool, now: float) -> None:
        record.checked_s, rate = now, page.true_rate(now)
        if not is_listed(page):
            record.due_s = now + within(wait_s(rate, self._price_s), MIN_S, MAX_S)
        else:
            record.due_s = page.next_change if rate * self._price_s < 1 else now + MAX_S

    def failed(self, page: Page, record: Record, now: float) -> None:
        self.compared(page, record, changed=False, now=now)


def is_listed(page: Page) -> bool:
    """Return True if a sitemap lists the page with the time at which it changed."""
    return page.listed and page.host.sitemap in (Sitemap.RIGHT, Sitemap.PARTLY)


def _requests(rate: float, price_s: float, *, listed: bool) -> float:
    """Return the requests a second that a page needs at a price, if its changes are `listed` or not."""
    if listed:
        return rate if rate * price_s < 1 else 0.0
    return 1 / within(wait_s(rate, price_s), MIN_S, MAX_S)


class Oracle(Fixed):
    """An oracle that knows each change when it happens, and fetches only pages that have changed.

    It spends its requests on the pages that then stay fresh for the longest time.
    """

    def __init__(self, web: ChangingWeb, requests_per_day: int) -> None:
        super().__init__(web, requests_per_day)
        left, self._fastest = requests_per_day / DAY_S, 0.0
        for rate in sorted(page.true_rate(0.0) for page in web.pages):
            left -= rate
            if left < 0:
                break
            self._fastest = rate

    def first(self, page: Page, now: float) -> Record:
        record = Record(now, now)
        self.compared(page, record, changed=False, now=now)
        return record

    def compared(self, page: Page, record: Record, *, changed: bool, now: float) -> None:
        slow = page.true_rate(now) <= self._fastest
        record.checked_s, record.due_s = now, page.next_change if slow else now + 10 * MAX_S
