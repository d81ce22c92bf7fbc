"""Publish seeds as discoveries, as workers publish outlinks. Publish the commands that follow from a changed spec.

Each function returns after the broker has stored all messages durably.
"""

import uuid
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

import structlog

from shared.domain.crawl.recrawl_spec import Recrawl
from shared.domain.crawl.scope_change import scope_command_of
from shared.domain.crawl.spec import Seed
from shared.domain.crawl.wider_scope import rediscovery_of
from shared.domain.frontier.commands import CommandKind, recrawl_of, retry_of
from shared.domain.frontier.counters import Counters
from shared.domain.frontier.seed_contexts import SeedContext, context_bytes, numbered
from shared.domain.ids import CrawlId, Partition, Revision
from shared.domain.web.url import canonicalize, host_of, partition_of
from shared.ports.broker import Broker
from shared.runtime.retry import until_answered
from shared.wire.messages import Command, Discoveries, Link, Origin, encode

log = structlog.get_logger("orb.control")

_LINKS_A_MESSAGE: Final = 500
_CHARS_A_MESSAGE: Final = 512 * 1024
"""Maximum characters of all URLs in a message, unless one URL is longer. It is half of a broker's default limit."""

SeedLink = tuple[Link, SeedContext | None]
"""A seed as it is published, with its labels and source."""


async def retry_unanswered(broker: Broker, crawl_id: CrawlId, revision: Revision, partitions: int) -> None:
    """Command all owners to queue again the URLs that failed without a response.

    Call it when a new `revision` of the spec may help these URLs, for example by a proxy or longer limits. Owners apply
    the command once for each revision. Return when the broker has acknowledged the command for every partition.
    """
    command = Command(retry_of(crawl_id, revision), crawl_id, CommandKind.RETRY_UNANSWERED)
    await _command_all(broker, command, partitions)


async def retry_failed(broker: Broker, crawl_id: CrawlId, command_id: str, partitions: int) -> None:
    """Command all owners to queue every failed URL again. An owner applies each `command_id` once.

    Return when the broker has acknowledged the command for every partition.
    """
    await _command_all(broker, Command(command_id, crawl_id, CommandKind.RETRY_FAILED), partitions)


async def schedule_recrawl(
    broker: Broker, crawl_id: CrawlId, revision: Revision, spec: Recrawl, counters: Counters, partitions: int
) -> None:
    """Command all owners to set the due times of stored pages by `spec`, or to remove them if pages are fetched once.

    - `spec`: the rules in the crawl's `revision` for fetching pages again.
    - `counters`: the crawl's counters. If they show that no page is affected, nothing is published.

    Return when the broker has acknowledged the command for every partition.
    """
    if not spec.used and not counters.revisits + counters.revisiting + counters.retries:
        return
    if spec.used and not counters.pages:
        return
    every_ms = int(spec.min_s * 1000) if spec.used else 0
    command = Command(recrawl_of(crawl_id, revision), crawl_id, CommandKind.RECRAWL, {"every_ms": every_ms})
    await _command_all(broker, command, partitions)


async def apply_scope(broker: Broker, crawl_id: CrawlId, revision: Revision, partitions: int) -> None:
    """Command all owners to apply the scope of `revision`, which has changed, to the URLs that the crawl has found.

    Return when the broker has acknowledged the command for every partition.
    """
    args = {"revision": int(revision)}
    await _command_all(
        broker, Command(scope_command_of(crawl_id, revision), crawl_id, CommandKind.RESCOPE, args), partitions
    )


async def find_again(broker: Broker, crawl_id: CrawlId, revision: Revision, partitions: int) -> None:
    """Command all owners to read the links of stored pages from the archive again, because the scope was widened.

    They queue the links that the wider scope admits. `revision`: the spec's revision at which it was widened. Return
    when the broker has acknowledged the command for every partition.
    """
    args = {"revision": int(revision)}
    await _command_all(
        broker, Command(rediscovery_of(crawl_id, revision), crawl_id, CommandKind.REDISCOVER, args), partitions
    )


async def _command_all(broker: Broker, command: Command, partitions: int) -> None:
    data = encode(command)
    for partition in map(Partition, range(partitions)):
        await until_answered(partial(broker.publish_command, partition, data, f"{command.id}.{partition}"))


async def publish_seeds(
    broker: Broker, crawl_id: CrawlId, revision: Revision, seeds: Sequence[Seed], partitions: int
) -> int:
    """Publish the seeds to their partitions. Return the number of valid seeds once the broker has acknowledged all.

    Log and skip a seed whose URL is not valid. A caller that was interrupted may publish all seeds again: owners merge
    URLs that they know.
    """
    links: dict[Partition, list[SeedLink]] = defaultdict(list)
    for seed in seeds:
        url = canonicalize(seed.url)
        if url is None:
            log.warning("seed.rejected", crawl=crawl_id, url=seed.url)
            continue
        links[partition_of(host_of(url), partitions)].append((Link(url, 0, 0, seed.priority), seed.context))
    producer = f"seeds-{uuid.uuid4().hex}"
    for partition, part in links.items():
        for message in seed_messages(crawl_id, revision, producer, part):
            message_id = f"{producer}.{partition}.{message.n}"
            await until_answered(partial(broker.publish_report, partition, "discovery", encode(message), message_id))
    return sum(map(len, links.values()))


def seed_messages(
    crawl_id: CrawlId, revision: Revision, producer: str, links: Sequence[SeedLink], *, of_set: bool = False
) -> Iterator[Discoveries]:
    """Yield numbered discovery messages with these seeds, which are all of one partition.

    The same arguments give the same messages.

    - `revision`: the spec's revision.
    - `producer`: the id under which the messages are numbered, from 1.
    - `links`: the seeds, each with its labels and source.
    - `of_set`: True if the seeds have joined a seed set.
    """
    n, begun, chars = 1, 0, 0
    for end, (link, context) in enumerate(links):
        if end > begun and (end - begun == _LINKS_A_MESSAGE or chars + len(link.url) > _CHARS_A_MESSAGE):
            yield _message(crawl_id, revision, producer, n, end, links[begun:end], of_set)
            n, begun, chars = n + 1, end, 0
        chars += len(link.url) + (0 if context is None else context_bytes(context))
    if links:
        yield _message(crawl_id, revision, producer, n, len(links), links[begun:], of_set)


def _message(
    crawl_id: CrawlId, revision: Revision, producer: str, n: int, total: int, links: Sequence[SeedLink], of_set: bool
) -> Discoveries:
    """Return message number `n` of `producer`, with these seeds grouped by their context.

    `total`: the number of seeds in all messages up to this one.
    """
    by_context: dict[SeedContext | None, list[Link]] = {}
    for link, context in links:
        by_context.setdefault(context, []).append(link)
    origins = [Origin(0, b"", some) for some in by_context.values()]
    contexts = numbered(list(by_context))
    return Discoveries(crawl_id, revision, producer, n, total, origins, *contexts, of_set=of_set)
