"""How often a page changes: a belief that each comparison of two fetches sharpens, in three bytes.

Changes of a page are taken as a Poisson process of an unknown rate, and the belief about that rate as a gamma
distribution. A page that did not change over a time multiplies it by the likelihood e^(-rate x time), which gives
another gamma distribution. A page that changed multiplies it by 1 - e^(-rate x time), which gives the difference of
two. The gamma distribution with the same mean and variance replaces it (assumed density filtering: Minka, A family of
algorithms for approximate Bayesian inference, 2001). So intervals may be irregular, for which counting changes is
biased (Cho and Garcia-Molina, Estimating frequency of change, 2003, section 5).

Times are seconds, rates changes a second.
"""

from dataclasses import dataclass
from math import expm1, log1p, log2
from typing import Final

OCTAVES: Final = 32
"""Rates are kept between 2**-OCTAVES (a change in 136 years) and one change a second."""

SLOWEST: Final = 2.0**-OCTAVES
FASTEST: Final = 1.0

REMEMBERED: Final = 24
"""A belief weighs at most this many changes, and at most the time of this many of its latest intervals. So a page that
begins to change, or ceases to, is noticed after a few fetches."""

PRIOR_SHAPE: Final = 0.5
"""How much a host's rate weighs for a page that was not compared yet, in changes. Pages of a host differ widely."""

_LONGEST_S: Final = 2.0**OCTAVES
_STEPS: Final = 2048
_SHAPE_STEPS: Final = 8
_SHAPE_MIN: Final = 1 / _SHAPE_STEPS
CODES: Final = 2**24
"""Values that `ChangeRate.code` may have."""


@dataclass(frozen=True, slots=True)
class ChangeRate:
    """A belief about a rate of change: a gamma distribution with this mean. `shape` is its weight in changes seen."""

    mean: float
    shape: float = PRIOR_SHAPE

    def observed(self, *, changed: bool, elapsed_s: float) -> "ChangeRate":
        """Return the belief after a comparison with the fetch `elapsed_s` before.

        Fetches less than a second apart say nothing, nor do those whose clock was set back between them.
        """
        if not elapsed_s >= 1.0:
            return self
        elapsed_s = min(elapsed_s, _LONGEST_S)
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

    def signalled(self, still_s: float) -> "ChangeRate":
        """Return the belief after a sign that tells when the page changed, such as a sitemap's `lastmod`.

        `still_s`: for how long the page is known to be without a change since its last comparison or sign. That is from
        the change until now, and before it until the last time without a sign. A page that is fetched because of a sign
        has always changed, so `observed` would take it for one that changes all the time.
        """
        still_s = min(max(still_s, 1.0), _LONGEST_S)
        shape = min(self.shape, max(REMEMBERED * still_s * self.mean, _SHAPE_MIN))
        return _limited((shape + 1) / (shape / self.mean + still_s), shape + 1)

    @property
    def cautious(self) -> float:
        """The rate to plan with: near the mean of a belief of some weight, and lower the less is known.

        The mean of a wide belief lies far above its usual rate. By it a page that changed once or twice would count
        among those that change too often for a fetch, and would not be fetched again for long.
        """
        return self.mean * self.shape / (self.shape + 1.0)

    @property
    def code(self) -> int:
        """The belief in 24 bits, never 0: the rate by steps of 0.034 %, and the shape by steps of 1/8."""
        rate = min(round((log2(self.mean) + OCTAVES) * _STEPS), OCTAVES * _STEPS - 1)
        return max(rate, 0) << 8 | max(1, round(self.shape * _SHAPE_STEPS))


def decoded(code: int) -> ChangeRate:
    """Return the belief with this `code`."""
    return ChangeRate(2.0 ** ((code >> 8) / _STEPS - OCTAVES), max(code & 0xFF, 1) / _SHAPE_STEPS)


def prior(rate: float) -> ChangeRate:
    """Return the belief about a page of which only the usual rate of its host is known."""
    return _limited(rate, PRIOR_SHAPE)


def _limited(mean: float, shape: float) -> ChangeRate:
    return ChangeRate(min(max(mean, SLOWEST), FASTEST), min(max(shape, _SHAPE_MIN), REMEMBERED))
