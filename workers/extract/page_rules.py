"""Selects the item rules that apply to a page, and extracts its items by these rules."""

from collections.abc import Sequence
from typing import Final
from urllib.parse import urljoin

from shared.domain.crawl.item_rules import ItemLimits, ItemRule
from shared.domain.crawl.patterns import Patterns
from shared.domain.ids import CrawlId, Fingerprint
from workers.extract.extractor import Extractor
from workers.extract.rules import Extraction, ExtractionInput


class PageRules:
    """The compiled item rules of one crawl at one revision of its spec."""

    __slots__ = ("_limits", "_rules", "_when")

    def __init__(self, rules: Sequence[ItemRule], limits: ItemLimits) -> None:
        self._rules: Final = tuple(rules)
        # A rule without `when` applies to every page: the empty pattern matches everything.
        self._when: Final = Patterns([rule.when or "" for rule in rules])
        self._limits: Final = limits

    def __repr__(self) -> str:
        return f"<PageRules {len(self._rules)}>"

    def of(self, url: str) -> tuple[ItemRule, ...]:
        """Return the item rules that apply to the page with this canonical URL."""
        return tuple([self._rules[at] for at in self._when.matching(url)])

    async def taken(
        self, extractor: Extractor, crawl_id: CrawlId, url: str, fingerprint: Fingerprint, html: "Html | None"
    ) -> Extraction | None:
        """Extract the items of a page, by the rules that apply to its canonical `url`.

        - If no rule applies, return None.
        - If `html` is None, the page has no HTML to extract from: return a result without items.
        - Otherwise return the items that `extractor` extracts.

        The caller must report every result that is not None. A result without items removes the items of an earlier
        fetch of the page.
        """
        rules = self.of(url)
        if not rules:
            return None
        if html is None:
            return Extraction()
        page = ExtractionInput(crawl_id, fingerprint, html.base_of(url), html.charset, html.body, html.xml)
        return await extractor.extract(page, rules, self._limits)


class Html:
    """An HTML page from which items can be extracted. `charset`: a Python codec. `xml`: the page is XHTML.

    `base_href`: the href of the page's base element as written, None without one.
    """

    __slots__ = ("base_href", "body", "charset", "xml")

    def __init__(self, body: bytes, charset: str, base_href: str | None, *, xml: bool = False) -> None:
        self.body: Final = body
        self.charset: Final = charset
        self.base_href: Final = base_href
        self.xml: Final = xml

    def base_of(self, url: str) -> str:
        """Return the URL to which the page's links are relative. `url`: the URL of the page."""
        try:
            return url if self.base_href is None else urljoin(url, self.base_href)
        except ValueError:
            return url
