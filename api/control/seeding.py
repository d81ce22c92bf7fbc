"""Seeds enter by the same door as outlinks: as discoveries, durable before they count as accepted."""

import uuid
from collections import defaultdict
from collections.abc import Sequence
from functools import partial

import structlog

from shared.domain.command import CommandKind
from shared.domain.crawl import Seed
from shared.domain.ids import CrawlId, Partition, Revision
from shared.domain.url import canonicalize, host_of, partition_of
from shared.ports.broker import Broker
from shared.ports.retrying import until_answered
from shared.wire.messages import Command, Discoveries, Link, Origin, encode

log = structlog.get_logger("orb.control")

_LINKS_A_MESSAGE = 500


async def retry_unanswered(broker: Broker, crawl_id: CrawlId, revision: Revision, partitions: int) -> None:
    """Have what failed without an answer tried again under a changed spec: the change may be what it was waiting for
    (an opened network, a proxy, longer limits). Returns when every partition's command is acknowledged."""
    command_id = f"revision-{crawl_id}-{revision}"
    data = encode(Command(command_id, crawl_id, CommandKind.RETRY_UNANSWERED))
    for partition in map(Partition, range(partitions)):
        await until_answered(partial(broker.publish_report, partition, "outcome", data, f"{command_id}.{partition}"))


async def publish_seeds(
    broker: Broker, crawl_id: CrawlId, revision: Revision, seeds: Sequence[Seed], partitions: int
) -> int:
    """Publish the seeds to their partitions; returns how many, once every one of them is acknowledged.

    A crash in between publishes them again under another producer: known URLs are merged, so that is harmless.
    """
    links: dict[Partition, list[Link]] = defaultdict(list)
    for seed in seeds:
        url = canonicalize(seed.url)
        if url is None:
            log.warning("seed.refused", crawl=crawl_id, url=seed.url)
            continue
        links[partition_of(host_of(url), partitions)].append(Link(url, 0, 0, seed.priority))
    producer = f"seeds-{uuid.uuid4().hex}"
    for partition, found in links.items():
        total = 0
        for n, start in enumerate(range(0, len(found), _LINKS_A_MESSAGE), 1):
            chunk = found[start : start + _LINKS_A_MESSAGE]
            total += len(chunk)
            message = Discoveries(crawl_id, revision, producer, n, total, [Origin(0, b"", chunk)])
            publish = partial(
                broker.publish_report, partition, "discovery", encode(message), f"{producer}.{partition}.{n}"
            )
            await until_answered(publish)
    return sum(map(len, links.values()))
