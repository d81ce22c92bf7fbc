"""Decode discoveries (reports of links or seeds) into a batch that one transaction writes.

A message that cannot be read becomes a dead letter. A link that cannot be queued is counted.
"""

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from api.frontier.dispatch_crawls import DispatchCrawl, DispatchCrawls
from shared.domain.crawl.exclusions import NO_EXCLUSIONS, Exclusions
from shared.domain.crawl.priority_rules import MAX_PRIORITY, CompiledPriority
from shared.domain.crawl.scope_change import found_beyond
from shared.domain.frontier.seed_contexts import context_at
from shared.domain.frontier.states import MAX_EXTRA_HOPS, kind_flags, with_extra_hops
from shared.domain.frontier.store_model import (
    DeadLetterRow,
    DiscoveredLink,
    DiscoveryTransaction,
    ProducerMark,
    with_context,
)
from shared.domain.ids import CrawlId, Partition
from shared.domain.web.url import Location, locate, partition_of
from shared.ports.broker import Delivered
from shared.wire.messages import Discoveries, Malformed, decode_discoveries

_MAX_DEPTH = 32_767
_MAX_SECONDS = 2**32 - 1


def gather(
    reports: Sequence[Delivered], partition: Partition, partitions: int, exclusions: Exclusions = NO_EXCLUSIONS
) -> DiscoveryTransaction:
    """Decode discovery reports, in their order, into one batch for a transaction.

    - `partition`: the partition of the reports. A URL of another partition is counted as refused.
    - `partitions`: the number of partitions of the cluster.
    - `exclusions`: the batch names the URLs that they cover, so that these are not queued.

    Every URL is canonicalized again, because another version of the worker may have sent it. A URL without a canonical
    form is counted as refused. A report that cannot be read becomes a dead letter of the batch.
    """
    messages: list[tuple[ProducerMark, tuple[DiscoveredLink, ...], int]] = []
    letters: list[DeadLetterRow] = []
    located: dict[str, Location | None] = {}
    with_contexts = False
    for report in reports:
        try:
            message = decode_discoveries(report.data)
        except Malformed as error:
            at_ms = report.at_ns // 1_000_000
            letters.append(DeadLetterRow(None, "discovery", at_ms, f"cannot be read: {error}", payload=report.data))
            continue
        messages.append(_message(message, partition, partitions, located))
        with_contexts = with_contexts or bool(message.contexts)
    excluded = (
        frozenset(
            place.fingerprint
            for place in located.values()
            if place is not None and exclusions.first(place.url, place.host)
        )
        if exclusions
        else frozenset()
    )
    return DiscoveryTransaction(tuple(messages), tuple(letters), excluded, with_contexts)


def with_priorities(batch: DiscoveryTransaction, rules: Mapping[CrawlId, CompiledPriority]) -> DiscoveryTransaction:
    """Return the batch with the priority of each link set by the rules of its crawl.

    Links of a crawl without rules keep their priority.
    """
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
    for number, origin in enumerate(message.origins):
        context, begun = context_at(message.contexts, message.context_of, number), len(links)
        lastmods = message.lastmods[number] if number < len(message.lastmods) else ()
        for place, link in enumerate(origin.links):
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
                    priority=max(-MAX_PRIORITY, min(link.priority, MAX_PRIORITY)),
                    via_host=origin.host_id,
                    via=origin.fingerprint,
                    kind=link.kind,
                    extra=max(0, min(link.extra, MAX_EXTRA_HOPS)),
                    lastmod=max(0, min(lastmods[place], _MAX_SECONDS)) if place < len(lastmods) else 0,
                    of_set=message.of_set,
                )
            )
        if context is not None:
            links[begun:] = [with_context(link, context) for link in links[begun:]]
    mark = ProducerMark(crawl_id, message.producer, message.n, message.total, message.spec)
    return mark, tuple(links), refused


def has_seeds(batch: DiscoveryTransaction) -> bool:
    """Return True if a message of the batch has seeds. A message has either seeds, or links of pages."""
    return any(links and not links[0].via_host for _, links, _ in batch.messages)


def links_to_judge(batch: DiscoveryTransaction, crawls: DispatchCrawls) -> Mapping[int, DispatchCrawl]:
    """Return which messages of the batch must be checked against the present scope of their crawl.

    The result maps the index of a message in the batch to the crawl of this message. It has two kinds of messages:

    - messages with seeds: workers do not check seeds,
    - messages with links that a worker checked under an earlier revision of the spec.

    Messages of an unknown crawl are left out, and messages of a crawl whose spec cannot be used.
    """
    # While the spec of a crawl cannot be used, no URL of the crawl is dispatched.
    found: dict[int, DispatchCrawl] = {}
    for place, (mark, links, _) in enumerate(batch.messages):
        crawl = crawls.find(mark.crawl_id)
        if crawl is None or crawl.refused is not None or not links:
            continue
        if mark.spec < crawl.revision or not links[0].via_host:
            found[place] = crawl
    return found


def judged(
    batch: DiscoveryTransaction, crawls: Mapping[int, DispatchCrawl], host_names: Mapping[int, str]
) -> DiscoveryTransaction:
    """Check the links of some messages against the present scope of their crawl. Return the batch with the results.

    - `crawls`: which messages to check, from `links_to_judge`. A key is the index of a message in the batch. The value
      is the crawl of that message.
    - `host_names`: maps host ids to host names, for the hosts of the pages on which the links were found. If the name
      for a page is missing, its links are checked as if the page was on the same host as the link.
    """
    messages = list(batch.messages)
    for place, crawl in crawls.items():
        mark, links, refused = messages[place]
        messages[place] = (mark, tuple(_judged(link, crawl, host_names) for link in links), refused)
    return replace(batch, messages=tuple(messages))


def _judged(link: DiscoveredLink, crawl: DispatchCrawl, host_names: Mapping[int, str]) -> DiscoveredLink:
    via_host = host_names.get(link.via_host, link.host) if link.via_host else None
    found = found_beyond(
        crawl.scope,
        link.url,
        link.host,
        depth=link.depth,
        hops=link.hops,
        flags=with_extra_hops(kind_flags(link.kind), link.extra),
        via_host=via_host,
    )
    if isinstance(found, int):
        return link if found == link.extra else replace(link, extra=found)
    return replace(link, outside=found.name.value)
