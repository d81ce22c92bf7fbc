"""Credentials that a stored spec of an earlier release holds are neither shown nor sent."""

import asyncio
from typing import Any, cast

import msgspec
import pytest

from shared.domain.crawl.credentials import MASK, masked_spec, without_credentials
from shared.domain.crawl.spec import CrawlSpec, Fetch, Seed, encode_spec
from shared.domain.crawl.spec_diff import spec_difference
from shared.domain.ids import CrawlId, Revision
from shared.ports.specs import PublishedSpec
from workers.outlinks import KnownLinks
from workers.visit_crawls import VisitCrawls

FETCH = Fetch(
    headers={"AUTHORIZATION": "Bearer secret", "Cookie": "a=secret", "proxy-authorization": "secret", "X": "kept"},
    proxy="http://me:secret@proxy.test:3128",
)
OLD = CrawlSpec(name="docs", seeds=(Seed(url="https://a.test/"),), fetch=FETCH)


def test_credentials_of_a_stored_spec_are_not_carried_out() -> None:
    fetch = without_credentials(OLD).fetch
    assert fetch.headers == {"X": "kept"}
    assert fetch.proxy == "http://proxy.test:3128"


def test_worker_sends_no_credential_of_a_stored_spec() -> None:
    class Specs:
        async def spec(self, crawl_id: CrawlId, revision: Revision) -> PublishedSpec:
            return PublishedSpec(crawl_id, revision, OLD, 8)

    async def story() -> None:
        crawls = VisitCrawls(cast(Any, Specs()), KnownLinks(), cast(Any, None))
        crawl = await crawls.active(CrawlId(1), Revision(1))
        assert crawl is not None
        assert "secret" not in repr((crawl.headers, crawl.spec))
        assert ("X", "kept") in crawl.headers

    asyncio.run(story())


@pytest.mark.parametrize(
    "spec", [{}, {"fetch": {}}, {"fetch": None}, {"fetch": {"headers": {"X": "y"}, "proxy": "http://p:1"}}]
)
def test_spec_without_credentials_is_shown_as_it_is(spec: dict[str, Any]) -> None:
    assert masked_spec(spec) == spec


def test_difference_of_stored_specs_masks_credentials() -> None:
    plain = msgspec.structs.replace(OLD, fetch=Fetch())
    found = spec_difference(encode_spec(OLD).decode(), encode_spec(plain).decode())
    shown = {each.path: each.before for each in found}
    assert shown["fetch.headers.AUTHORIZATION"] == MASK
    assert shown["fetch.proxy"] == f"http://{MASK}@proxy.test:3128"
    assert "secret" not in repr(found)
