"""The freshness that no policy can exceed on a simulated web with a number of requests, unless it knows the future.

It is computed from the web's own rates, without a simulation. docs/decisions/0057 has the proof. Times are seconds,
rates changes a second. A page's measured time is cut into sections in which its rate is constant. Each section may
begin with a fresh copy for free, which only raises the bound. With m requests in a section of length L it is fresh for
at most

- (m + 1) h(L / (m + 1)) where h(t) = (1 - exp(-rate t)) / rate, if nothing tells of changes. Equal intervals are best,
  since h is concave. What other requests showed does not help, since the changes are a Poisson process;
- min(L, g + m / rate) if each change is known at once: a request after a change gives a fresh copy until the next one.
  g is what the first copy gives. Right sitemaps tell of changes. A policy may know when periodic pages change.

With a price for each request, every page can be judged alone: the sum of the most that each is fresh, less the price of
its requests, plus the price of all requests that the budget has, is an upper bound at any price. The least of these is
the bound.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import expm1, sqrt
from typing import Final

from shared.domain.frontier.recrawl import wait_s
from tests.support.simulation.changing_web import DAY_S, ChangingWeb, Page
from tests.support.simulation.knowing_policies import is_listed

PRICES_S: Final = (1.0, 1e9)
"""The prices of a request between which that of the least bound is sought."""

_PRICE_STEP: Final = 1.001


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a page's measured time in which its rate is constant. `known`: each change is known at once.

    `first_s`: the time for which a copy of its beginning is fresh, on average.
    """

    rate: float
    length_s: float
    first_s: float
    known: bool

    def requests(self, price_s: float) -> float:
        """Return the requests for which the fresh time less their price is greatest."""
        if self.rate * price_s >= 1:
            return 0.0
        if self.known:
            return (self.length_s - self.first_s) * self.rate
        return max(0.0, self.length_s / wait_s(self.rate, price_s) - 1)

    def fresh_s(self, requests: float) -> float:
        """Return the greatest time for which the page is fresh with a number of requests."""
        if self.known:
            return min(self.length_s, self.first_s + requests / self.rate)
        copies = requests + 1
        return copies * _copy_s(self.rate, self.length_s / copies)


def freshness_bound(web: ChangingWeb, requests_per_day: int, start: float) -> float:
    """Return the greatest freshness of `web` from `start` to its end that can be expected of a policy.

    `requests_per_day`: the budget. What was left over in a hundredth of a day before `start` may be sent, too.
    """
    sections = [section for page in web.pages for section in sections_of(page, start, web.end_s)]
    requests = requests_per_day * ((web.end_s - start) / DAY_S + 0.01) + 2
    low, high = PRICES_S
    while high / low > _PRICE_STEP:
        price_s = sqrt(low * high)
        asked = sum(section.requests(price_s) for section in sections)
        low, high = (price_s, high) if asked > requests else (low, price_s)
    return min(_at_price(sections, requests, price_s) for price_s in (low, high)) / sum(
        section.length_s for section in sections
    )


def fixed_freshness(web: ChangingWeb, every_s: float, start: float) -> float:
    """Return the freshness of `web` from `start` to its end that is expected if each page is fetched every `every_s`.

    No request fails. A periodic page is fetched at any point of its period.
    """
    fresh_s = lived_s = 0.0
    for page in web.pages:
        for section in sections_of(page, start, web.end_s):
            copy_s = _copy_s(section.rate, every_s)
            if page.period:
                copy_s = page.period / 2 if page.period < every_s else every_s - every_s**2 / page.period / 2
            fresh_s += section.length_s * copy_s / every_s
            lived_s += section.length_s
    return fresh_s / lived_s


def _at_price(sections: list[Section], requests: float, price_s: float) -> float:
    """Return the upper bound of the fresh time of all sections that follows from a price."""
    total = price_s * requests
    for section in sections:
        asked = section.requests(price_s)
        total += section.fresh_s(asked) - price_s * asked
    return total


def sections_of(page: Page, start: float, end: float) -> Iterator[Section]:
    end = min(end, page.dies_at)
    turn = min(max(page.turns_at, start), end) if not page.period else end
    for begin, stop in ((start, turn), (turn, end)):
        if (length_s := stop - begin) <= 0:
            continue
        rate = page.true_rate(begin)
        first_s = min(page.change_after(begin, 0.0) - begin, length_s) if page.period else _copy_s(rate, length_s)
        yield Section(rate, length_s, first_s, known=page.period > 0 or is_listed(page))


def _copy_s(rate: float, elapsed_s: float) -> float:
    """Return for how long a copy is fresh on average within the time after its fetch."""
    return -expm1(-rate * elapsed_s) / rate
