"""Items of pages that are fetched again, and that count as unchanged."""

import time
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.test_recrawl import INTERVAL_S, changes, orb
from tests.e2e.test_recrawl_relisted import spec_of
from tests.support.processes.orb_command import export
from tests.support.web.changing_site import page, serving

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


@pytest.mark.parametrize("compare", ["payload", "text", "items"])
def test_unchanged_page_has_the_items_of_its_latest_fetch(compare: str, tmp_path: Path) -> None:
    """The items of such a fetch never reached the table: neither a changed attribute nor the field of a new rule."""
    folder = tmp_path / "site.crawl"
    fields: dict[str, Any] = {"price": {"css": "p", "take": "attr:data-price"}}

    def refreshed() -> list[dict[str, Any]]:
        rules = [{"name": "product", "fields": fields}]
        recrawl = {"policy": "fixed", "min_s": 1, "compare": compare}
        start = spec_of(site, folder, recrawl=recrawl, extract={"items": rules})
        orb("crawl", "--spec", start, "--refresh", "--out", folder, "--json")
        time.sleep(INTERVAL_S)
        return [item["data"] for item in export("items", folder)]

    with serving() as site:
        site.pages = {"/": page("bolt").replace("<p", '<p data-price="1.50"')}
        assert refreshed() == [{"price": "1.50"}]
        site.pages["/"] = site.pages["/"].replace("1.50", "2.75")
        assert refreshed() == [{"price": "2.75"}]
        seen = changes(folder)
        assert len(seen) == (1 if compare == "text" else 2)
        fields["text"] = {"css": "p"}
        assert refreshed() == [{"price": "2.75", "text": "bolt"}]
        if compare != "items":
            assert changes(folder) == seen
