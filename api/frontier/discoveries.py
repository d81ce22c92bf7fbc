"""Turns discovery messages into a batch to apply.

What cannot be read becomes a dead letter; what cannot be queued is counted.
"""

from collections.abc import Sequence

from shared.domain.ids import CrawlId, Partition
from shared.domain.ledger import DeadLetter, FoundBatch, FoundLink, ProducerMark
from shared.domain.url import Location, locate, partition_of
from shared.ports.broker import Delivered
from shared.wire.messages import Discoveries, Malformed, decode_discoveries

_MAX_DEPTH = 32_767
_MOST_PRIORITY = 100


def gather(reports: Sequence[Delivered], partition: Partition, partitions: int) -> FoundBatch:
    """The batch that these reports make, in their order.

    Every URL is brought into canonical form again, so that the tables hold one form whatever version a worker runs; a
    URL without one, or of another partition, is refused.
    """
    messages: list[tuple[ProducerMark, tuple[FoundLink, ...], int]] = []
    letters: list[DeadLetter] = []
    located: dict[str, Location | None] = {}
    for report in reports:
        try:
            message = decode_discoveries(report.data)
        except Malformed as error:
            at_ms = report.at_ns // 1_000_000
            letters.append(DeadLetter(None, "discovery", at_ms, f"cannot be read: {error}", payload=report.data))
            continue
        messages.append(_message(message, partition, partitions, located))
    return FoundBatch(tuple(messages), tuple(letters))


def _message(
    message: Discoveries, partition: Partition, partitions: int, located: dict[str, Location | None]
) -> tuple[ProducerMark, tuple[FoundLink, ...], int]:
    crawl_id = CrawlId(message.crawl)
    links: list[FoundLink] = []
    refused = 0
    for origin in message.origins:
        for link in origin.links:
            # Workers report a popular link about once each, so a batch names most URLs more than once.
            location = located.get(link.url)
            if location is None and link.url not in located:
                location = located[link.url] = locate(link.url)
            if location is None or partition_of(location.host, partitions) != partition:
                refused += 1
                continue
            links.append(
                FoundLink(
                    crawl_id=crawl_id,
                    url=location.url,
                    host=location.host,
                    fingerprint=location.fingerprint,
                    depth=max(0, min(link.depth, _MAX_DEPTH)),
                    hops=max(0, min(link.hops, _MAX_DEPTH)),
                    priority=max(-_MOST_PRIORITY, min(link.priority, _MOST_PRIORITY)),
                    via_host=origin.host_id,
                    via=origin.fingerprint,
                )
            )
    return ProducerMark(crawl_id, message.producer, message.n, message.total), tuple(links), refused
