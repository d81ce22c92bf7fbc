"""Estimate how often a page changes, from comparisons of its fetches. An estimate is stored in three bytes.

The changes of a page are modelled as a Poisson process of an unknown rate. The estimate of the rate is a gamma
distribution. Each comparison of two fetches multiplies it by the likelihood of what was found:

- No change was found: the likelihood is e^(-rate x time). The product is a gamma distribution again.
- A change was found: the likelihood is 1 - e^(-rate x time). The product is the difference of two gamma distributions.
  It is replaced by the one gamma distribution that has the same mean and variance. This is assumed density filtering
  (Minka, A family of algorithms for approximate Bayesian inference, 2001).

Times are in seconds. Rates are in changes per second.
"""

from math import expm1, log1p, log2
from typing import Final

from msgspec import Struct

OCTAVES: Final = 32
"""Rates are limited to values between 2**-OCTAVES (a change in 136 years) and one change a second."""

SLOWEST: Final = 2.0**-OCTAVES
FASTEST: Final = 1.0

REMEMBERED: Final = 24
"""The maximum of `ChangeRate.shape`: an estimate counts as the result of at most this many observed changes of a page.

Without a limit, the estimate of a page with a long history would hardly react to new observations. With the limit, the
estimate soon adapts if the page begins to change more often or less often."""

PRIOR_SHAPE: Final = 0.5
"""The `shape` (weight) of a page's first estimate, made before any two fetches of the page were compared. This estimate
weighs as much as half an observed change."""

_LONGEST_S: Final = 2.0**OCTAVES
_STEPS: Final = 2048
_SHAPE_STEPS: Final = 8
_SHAPE_MIN: Final = 1 / _SHAPE_STEPS
CODES: Final = 2**24
"""The number of values that `ChangeRate.code` can have."""


class ChangeRate(Struct, frozen=True):
    """An estimate of a page's rate of change: a gamma distribution, as its `mean` (changes a second) and its `shape`.

    `shape` is the weight of the estimate: the number of observed changes that it is worth, at most REMEMBERED.
    """

    mean: float
    shape: float = PRIOR_SHAPE

    def observed(self, *, changed: bool, elapsed_s: float) -> "ChangeRate":
        """Return the estimate after a comparison with an earlier fetch.

        - `changed`: the page differed from that fetch.
        - `elapsed_s`: the seconds since that fetch. If they are less than 1, or negative because a clock was set back,
          the estimate does not change.
        """
        if not elapsed_s >= 1.0:
            return self
        elapsed_s = min(elapsed_s, _LONGEST_S)
        # The time that the estimate is worth, `shape / mean`, is limited to REMEMBERED times the new time.
        shape = min(self.shape, max(REMEMBERED * elapsed_s * self.mean, _SHAPE_MIN))
        seen_s = shape / self.mean
        if not changed:
            return _limited(shape / (seen_s + elapsed_s), shape)
        # The moments of the difference of two gamma distributions, by the logarithm of seen / (seen + elapsed).
        ratio = -log1p(elapsed_s / seen_s)
        none = expm1(shape * ratio)
        mean = shape / seen_s * expm1((shape + 1) * ratio) / none
        square = shape * (shape + 1) / seen_s**2 * expm1((shape + 2) * ratio) / none
        return _limited(mean, mean * mean / max(square - mean * mean, mean * mean / REMEMBERED))

    def signalled(self, unchanged_s: float) -> "ChangeRate":
        """Return the estimate after a sitemap or feed gave the date of a change of the page (`lastmod`).

        For a change that only a fetch showed, use `observed`.

        `unchanged_s`: the part of the time since the last update of the estimate in which the page surely did not
        change, in seconds. For example:

        - On Monday the estimate was last updated.
        - On Wednesday the sitemap was read and gave no new date. So the page did not change for these 2 days.
        - On Saturday the sitemap is read again. It says that the last change was on Friday. So the page did not change
          from Friday to Saturday, 1 day.

        Then `unchanged_s` is 2 + 1 = 3 days, in seconds. The change was between Wednesday and Friday. These 2 days do
        not count.
        """
        # The page may have changed more than once between the two spans. This counts as one change.
        unchanged_s = min(max(unchanged_s, 1.0), _LONGEST_S)
        shape = min(self.shape, max(REMEMBERED * unchanged_s * self.mean, _SHAPE_MIN))
        return _limited((shape + 1) / (shape / self.mean + unchanged_s), shape + 1)

    @property
    def cautious(self) -> float:
        """The rate to plan fetches with, in changes a second: `mean` times `shape` / (`shape` + 1).

        It is lower than `mean`, which is usually too high if the estimate has little weight.
        """
        return self.mean * self.shape / (self.shape + 1.0)

    @property
    def code(self) -> int:
        """The estimate as a number of 24 bits, which is never 0. `decoded` is the inverse.

        The upper 16 bits encode the rate in steps of 0.034 %. The lower 8 bits are `shape` in eighths.
        """
        rate = min(round((log2(self.mean) + OCTAVES) * _STEPS), OCTAVES * _STEPS - 1)
        return max(rate, 0) << 8 | max(1, round(self.shape * _SHAPE_STEPS))


def decoded(code: int) -> ChangeRate:
    """Return the estimate that `ChangeRate.code` encoded as `code`."""
    return ChangeRate(2.0 ** ((code >> 8) / _STEPS - OCTAVES), max(code & 0xFF, 1) / _SHAPE_STEPS)


def prior(rate: float) -> ChangeRate:
    """Return the first estimate for a page: the mean `rate` (changes a second), and PRIOR_SHAPE as its `shape`."""
    return _limited(rate, PRIOR_SHAPE)


def _limited(mean: float, shape: float) -> ChangeRate:
    return ChangeRate(min(max(mean, SLOWEST), FASTEST), min(max(shape, _SHAPE_MIN), REMEMBERED))
