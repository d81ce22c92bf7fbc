"""Discovery messages: each link to its partition, bounded, numbered without a gap; none lost, none said twice."""

from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from shared.domain.frontier.seed_contexts import SeedContext, context_at
from shared.domain.ids import CrawlId, Partition, Revision, numbered
from shared.domain.ops.retention import DAY_MS, used_until_ms
from shared.domain.web.url import fingerprint, locate, partition_of
from shared.wire.messages import decode_discoveries
from workers.discoveries import (
    MAX_BYTES,
    MAX_LINKS,
    DiscoveryBatch,
    DiscoveryStream,
    Numbering,
    PageLinks,
    batches_by_stream,
)
from workers.visit_crawls import VisitCrawl

PARTITIONS = 8
NOW_MS = 1_700_000_000_000


class Crawl:
    """What of an ActiveCrawl matters here."""

    def __init__(self, crawl_id: int = 1, revision: int = 1) -> None:
        self.crawl_id = CrawlId(crawl_id)
        self.revision = Revision(revision)
        self.partitions = PARTITIONS


def found(*urls: str, page: str = "http://a.example/", depth: int = 1, hops: int = 0, crawl: Any = None) -> PageLinks:
    here = locate(page)
    assert here is not None
    links = tuple(location for url in urls if (location := locate(url)) is not None)
    host_id = numbered(1, partition_of(here.host, PARTITIONS))
    return PageLinks(cast(VisitCrawl, crawl or Crawl()), host_id, here.host, here.fingerprint, links, depth, hops)


def links(batches: list[DiscoveryBatch]) -> list[tuple[str, int]]:
    return [(link.url, link.depth) for batch in batches for origin in batch.origins for link in origin.links]


@given(st.lists(st.lists(st.integers(0, 40), max_size=8), max_size=8))
def test_every_link_goes_to_the_partition_of_its_host_once(pages: list[list[int]]) -> None:
    urls = [[f"http://h{number}.example/{number}" for number in page] for page in pages]
    streams = batches_by_stream([found(*page, page=f"http://p{at}.example/") for at, page in enumerate(urls)])
    sent = {stream.partition: [url for url, _ in links(batches)] for stream, batches in streams.items()}
    assert sorted(url for urls in sent.values() for url in urls) == sorted({url for page in urls for url in page})
    for partition, there in sent.items():
        assert {partition_of(location.host, PARTITIONS) for url in there if (location := locate(url))} == {partition}


def test_a_link_nearer_to_the_seeds_is_said_again_and_a_farther_one_is_not() -> None:
    url = "http://a.example/x"
    pages = [found(url, depth=3), found(url, depth=4), found(url, depth=2), found(url, depth=2, hops=1)]
    [batches] = batches_by_stream(pages).values()
    assert links(batches) == [(url, 3), (url, 2)]


def test_revisions_and_crawls_do_not_share_a_message() -> None:
    url = "http://a.example/x"
    streams = batches_by_stream([found(url), found(url, crawl=Crawl(1, 2)), found(url, crawl=Crawl(2))])
    assert sorted(stream.crawl_id for stream in streams) == [1, 2]
    batches = next(batches for stream, batches in streams.items() if stream.crawl_id == 1)
    assert [(batch.spec, batch.links) for batch in batches] == [(1, 1), (2, 1)]


def test_no_message_exceeds_its_bounds_and_none_loses_a_link() -> None:
    many = [f"http://a.example/{number}" for number in range(2 * MAX_LINKS + 1)]
    long = [f"http://a.example/{number}/{'x' * 15_000}" for number in range(100)]
    numbering = Numbering("w1.0")
    [(stream, batches)] = batches_by_stream([found(*many), found(*long)]).items()
    seen = []
    for n, batch in enumerate(batches, 1):
        data, message_id = numbering.message(stream, batch, NOW_MS)
        assert (data, message_id) == numbering.message(stream, batch, NOW_MS), "a repeat is the same message"
        numbering.acknowledged(stream, batch)
        message = decode_discoveries(data)
        assert len(data) <= MAX_BYTES * 1.1
        assert batch.links <= MAX_LINKS
        seen += [link.url for origin in message.origins for link in origin.links]
        assert (message.n, message.total) == (n, len(seen))
    assert seen == many + long


def test_streams_are_numbered_apart() -> None:
    numbering = Numbering("w1.0")
    batch = DiscoveryBatch(Revision(1), [], 3)
    first, second = (DiscoveryStream(CrawlId(1), Partition(number)) for number in (0, 1))
    numbering.message(first, batch, NOW_MS)
    numbering.acknowledged(first, batch)
    numbers = [decode_discoveries(numbering.message(stream, batch, NOW_MS)[0]) for stream in (first, second)]
    assert [(message.n, message.total) for message in numbers] == [(2, 6), (1, 3)]


def test_weekly_numbers_restart_under_a_name_with_its_expiry() -> None:
    numbering, batch = Numbering("w1.0"), DiscoveryBatch(Revision(1), [], 3)
    resting, busy = (DiscoveryStream(CrawlId(1), Partition(number)) for number in (0, 1))
    names = []

    def sent(stream: DiscoveryStream, now_ms: int) -> int:
        data, message_id = numbering.message(stream, batch, now_ms)
        message = decode_discoveries(data)
        assert message_id == f"{message.producer}.1.{stream.partition}.{message.n}"
        names.append(message.producer)
        return message.n

    for expected in (1, 2):
        assert sent(resting, NOW_MS) == expected
        numbering.acknowledged(resting, batch)
    assert sent(busy, NOW_MS) == 1
    later = NOW_MS + 7 * DAY_MS
    assert sent(busy, later) == 1, "what is not acknowledged is the same message, under the same name"
    assert len(numbering) == 1, "who came to rest is forgotten"
    numbering.acknowledged(busy, batch)
    assert [sent(stream, later) for stream in (busy, resting)] == [1, 1]
    assert sent(busy, NOW_MS) == 1, "a clock that is set back takes up no name again"
    old, new = names[0], names[-1]
    assert names == [old] * 4 + [new] * 3
    assert NOW_MS < (used_until_ms(old) or 0) <= later < (used_until_ms(new) or 0)
    assert used_until_ms("seeds-0123") is None


def test_a_page_split_over_messages_is_named_as_origin_in_each() -> None:
    page = found(*(f"http://a.example/{number}" for number in range(MAX_LINKS + 1)))
    [batches] = batches_by_stream([replace(page, depth=7)]).values()
    assert [origin.fingerprint for batch in batches for origin in batch.origins] == [
        fingerprint("http://a.example/")
    ] * 2


def test_links_are_sent_with_the_context_of_their_page() -> None:
    red, blue = SeedContext((("team", "red"),)), SeedContext((), "list-2")
    url = "http://a.example/"
    pages = [
        replace(found(f"{url}1"), context=red),
        found(f"{url}2"),
        replace(found(f"{url}3", f"{url}1"), context=blue),
        replace(found(f"{url}4"), context=red),
    ]
    [(stream, [batch])] = batches_by_stream(pages).items()
    message = decode_discoveries(Numbering("w1.0").message(stream, batch, NOW_MS)[0])
    assert message.contexts == [red, blue]
    sent = {
        link.url: context_at(message.contexts, message.context_of, place)
        for place, origin in enumerate(message.origins)
        for link in origin.links
    }
    assert sent == {f"{url}1": red, f"{url}2": None, f"{url}3": blue, f"{url}4": red}


def test_message_with_long_contexts_is_within_its_bounds() -> None:
    long = "x" * 2_000
    pages = [
        replace(found(f"http://a.example/{n}", page=f"http://a.example/p{n}"), context=SeedContext((), f"{long}{n}"))
        for n in range(600)
    ]
    numbering = Numbering("w1.0")
    [(stream, batches)] = batches_by_stream(pages).items()
    sizes = []
    for batch in batches:
        sizes.append(len(numbering.message(stream, batch, NOW_MS)[0]))
        numbering.acknowledged(stream, batch)
    assert len(sizes) > 1
    assert max(sizes) <= MAX_BYTES * 1.1
