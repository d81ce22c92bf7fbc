"""What a sign of change does to a stored page that waits for its next fetch. These functions do no I/O.

A sign of change is the `lastmod` of a sitemap or feed, if it is later than the page's last fetch. It makes the page due
sooner. How much sooner depends on how often the signs of its host were right. The page is never due sooner than the
spec's `min_s` seconds after its last fetch.
"""

from msgspec import Struct
from msgspec.structs import replace

from shared.domain.crawl.recrawl_rules import CompiledRecrawl
from shared.domain.crawl.recrawl_spec import RecrawlPolicy
from shared.domain.frontier.change_rate import decoded
from shared.domain.frontier.page_history import PageHistory
from shared.domain.frontier.page_visits import rate_before
from shared.domain.frontier.recrawl_pages import AdaptiveSchedule
from shared.domain.frontier.signals import HostSignals, rate_signalled


class Signed(Struct, frozen=True):
    """What is stored of a page after a sign of change came for the page.

    - `history`: what the fetches and signs of the page have shown up to now, including the new sign.
    - `due_ms`: when the page is to be fetched again (Unix ms).
    - `sooner`: True if `due_ms` is earlier than it was before the sign.
    """

    history: PageHistory
    due_ms: int
    sooner: bool


class PageSigns(Struct, frozen=True):
    """The rules by which a date in a sitemap or feed makes a page due sooner, for one crawl in one partition.

    `adaptive`: the schedule of a crawl whose pages are fetched by their rates of change (recrawl policy `adaptive`).
    """

    recrawl: CompiledRecrawl
    adaptive: AdaptiveSchedule

    def signed(
        self, url: str, history: PageHistory, due_ms: int, lastmod_ms: int, signals: HostSignals, now_ms: int
    ) -> Signed | None:
        """Return the page's history and due time after a sitemap or feed gave a date for it.

        Return None if the date changes nothing: for example, it is not later than the page's last fetch. Times are Unix
        ms.

        - `history`, `due_ms`: the page's history and due time up to now.
        - `lastmod_ms`: the date that the sitemap or feed gives.
        - `signals`: how often such dates of the host were right, and when a sitemap of the host was read before.
        """
        interval = self.recrawl.of(url)
        if lastmod_ms <= history.checked_ms or interval.policy is not RecrawlPolicy.ADAPTIVE:
            return None
        after = replace(history, signalled=True)
        if signals.trusted and lastmod_ms > history.known_ms:
            rate = rate_signalled(
                decoded(rate_before(history, interval, self.adaptive)),
                lastmod_ms=lastmod_ms,
                known_ms=max(history.known_ms, history.checked_ms),
                read_ms=signals.read_ms,
                now_ms=now_ms,
            )
            after = replace(after, rate=rate, known_ms=now_ms, sign_share=self.adaptive.sign_share(rate, signals))
        sooner_ms = due_ms
        if signals.trust.precision > 0:
            rate = after.rate or rate_before(history, interval, self.adaptive)
            sooner_ms = history.checked_ms + self.adaptive.signalled_wait_ms(rate, interval, signals)
        if after == history and sooner_ms >= due_ms:
            return None
        return Signed(after, min(due_ms, sooner_ms), sooner_ms < due_ms)
