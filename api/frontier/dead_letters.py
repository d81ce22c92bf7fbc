"""Make dead letters of reports that can never be applied. Pure."""

from shared.domain.frontier.store_model import DeadLetterRow, DiscoveryTransaction, ProducerMark
from shared.domain.ids import CrawlId, Partition
from shared.ports.broker import Delivered, ReportKind
from shared.wire.messages import Malformed, ShardUnreadable, decode_discoveries, decode_report
from shared.wire.subjects import visit

_EVIDENCE_CHARS = 2000


def letter_of(kind: ReportKind, report: Delivered, evidence: str) -> DeadLetterRow:
    """Return the dead letter of a report that can never be applied; `evidence` says why.

    The dead letter names the report's crawl, or None if the report cannot be read or has no crawl.
    """
    at_ms = report.at_ns // 1_000_000
    return DeadLetterRow(_crawl_of(kind, report.data), kind, at_ms, evidence[:_EVIDENCE_CHARS], payload=report.data)


def letter_of_shard(partition: Partition, message: ShardUnreadable, at_ms: int) -> DeadLetterRow:
    """Return the dead letter of an unreadable URL shard. It names no crawl, because the shard's crawl is unknown."""
    subject = visit(message.pool, partition, message.host_id, message.slot)
    fate = f"worker {message.worker} acknowledged it" if message.worker else "no worker came for it"
    evidence = (
        f"a URL shard of {message.size} bytes cannot be read: {message.reason}. It was message {message.sequence} on"
        f" {subject}; {fate}, and what is leased for that place is sent anew"
    )
    return DeadLetterRow(None, "shard", at_ms, evidence[:_EVIDENCE_CHARS], payload=message.data)


def refused(report: Delivered, letter: DeadLetterRow) -> DiscoveryTransaction | None:
    """Return a batch that stores `letter` instead of a report's links, and counts these links as refused.

    Return None if the report cannot be read, because then its links cannot be counted.
    """
    try:
        message = decode_discoveries(report.data)
    except Malformed:
        return None
    mark = ProducerMark(CrawlId(message.crawl), message.producer, message.n, message.total)
    return DiscoveryTransaction(((mark, (), sum(len(origin.links) for origin in message.origins)),), (letter,))


def _crawl_of(kind: ReportKind, data: bytes) -> CrawlId | None:
    try:
        report = decode_discoveries(data) if kind == "discovery" else decode_report(data)
    except Malformed:
        return None
    crawl = 0 if isinstance(report, ShardUnreadable) else report.crawl
    return CrawlId(crawl) if crawl else None
