"""Decode discoveries (reports of links or seeds) into a batch that one transaction writes.

A message that cannot be read becomes a dead letter. A link that cannot be queued is counted.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from shared.domain.crawl.exclusions import NO_EXCLUSIONS, Exclusions
from shared.domain.crawl.priority_rules import CompiledPriority
from shared.domain.frontier.store_model import DeadLetterRow, DiscoveredLink, DiscoveryTransaction, ProducerMark
from shared.domain.ids import CrawlId, Partition
from shared.domain.web.url import Location, locate, partition_of
from shared.ports.broker import Delivered
from shared.wire.messages import Discoveries, Malformed, decode_discoveries

_MAX_DEPTH = 32_767
_MAX_PRIORITY = 100


def gather(
    reports: Sequence[Delivered], partition: Partition, partitions: int, exclusions: Exclusions = NO_EXCLUSIONS
) -> DiscoveryTransaction:
    """Decode discovery reports into one batch for a transaction, in order.

    Every URL is canonicalized again, so that the tables have one form whatever version a worker runs. A URL without a
    canonical form, or of another partition, is refused. URLs that an exclusion covers are not to be queued.
    """
    messages: list[tuple[ProducerMark, tuple[DiscoveredLink, ...], int]] = []
    letters: list[DeadLetterRow] = []
    located: dict[str, Location | None] = {}
    for report in reports:
        try:
            message = decode_discoveries(report.data)
        except Malformed as error:
            at_ms = report.at_ns // 1_000_000
            letters.append(DeadLetterRow(None, "discovery", at_ms, f"cannot be read: {error}", payload=report.data))
            continue
        messages.append(_message(message, partition, partitions, located))
    excluded = (
        frozenset(
            place.fingerprint
            for place in located.values()
            if place is not None and exclusions.first(place.url, place.host)
        )
        if exclusions
        else frozenset()
    )
    return DiscoveryTransaction(tuple(messages), tuple(letters), excluded)


def with_priorities(batch: DiscoveryTransaction, rules: Mapping[CrawlId, CompiledPriority]) -> DiscoveryTransaction:
    """Return the batch with the priorities that the rules of each crawl give its URLs."""
    if not rules:
        return batch
    messages = tuple(
        (mark, _ranked(links, rules[mark.crawl_id]) if mark.crawl_id in rules else links, refused)
        for mark, links, refused in batch.messages
    )
    return replace(batch, messages=messages)


def _ranked(links: tuple[DiscoveredLink, ...], rules: CompiledPriority) -> tuple[DiscoveredLink, ...]:
    given = [rules.of(link.url, link.priority) for link in links]
    return tuple(
        link if link.priority == priority else replace(link, priority=priority)
        for link, priority in zip(links, given, strict=True)
    )


def _message(
    message: Discoveries, partition: Partition, partitions: int, located: dict[str, Location | None]
) -> tuple[ProducerMark, tuple[DiscoveredLink, ...], int]:
    crawl_id = CrawlId(message.crawl)
    links: list[DiscoveredLink] = []
    refused = 0
    for origin in message.origins:
        for link in origin.links:
            # Each worker reports a popular link about once, so most URLs occur more than once in a batch.
            location = located.get(link.url)
            if location is None and link.url not in located:
                location = located[link.url] = locate(link.url)
            if location is None or partition_of(location.host, partitions) != partition:
                refused += 1
                continue
            links.append(
                DiscoveredLink(
                    crawl_id=crawl_id,
                    url=location.url,
                    host=location.host,
                    fingerprint=location.fingerprint,
                    depth=max(0, min(link.depth, _MAX_DEPTH)),
                    hops=max(0, min(link.hops, _MAX_DEPTH)),
                    priority=max(-_MAX_PRIORITY, min(link.priority, _MAX_PRIORITY)),
                    via_host=origin.host_id,
                    via=origin.fingerprint,
                    kind=link.kind,
                )
            )
    return ProducerMark(crawl_id, message.producer, message.n, message.total), tuple(links), refused
