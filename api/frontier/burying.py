"""Reports that can never be applied, as dead letters that say whose they were. Pure."""

from shared.domain.ids import CrawlId, Partition
from shared.domain.ledger import DeadLetter, FoundBatch, ProducerMark
from shared.ports.broker import Delivered, ReportKind
from shared.wire.messages import Malformed, Unreadable, decode_discoveries, decode_report
from shared.wire.subjects import visit

_EVIDENCE_CHARS = 2000


def letter_of(kind: ReportKind, report: Delivered, evidence: str) -> DeadLetter:
    """The dead letter of a report, under its crawl where it can be read and has one."""
    at_ms = report.at_ns // 1_000_000
    return DeadLetter(_crawl_of(kind, report.data), kind, at_ms, evidence[:_EVIDENCE_CHARS], payload=report.data)


def letter_of_shard(partition: Partition, message: Unreadable, at_ms: int) -> DeadLetter:
    """The dead letter of a URL shard that nobody can read. It names no crawl, as nobody could read which."""
    subject = visit(message.pool, partition, message.host_id, message.slot)
    found = f"worker {message.worker} acknowledged it" if message.worker else "no worker came for it"
    evidence = (
        f"a URL shard of {message.size} bytes cannot be read: {message.reason}. It was message {message.sequence} on"
        f" {subject}; {found}, and what is leased for that place is sent anew"
    )
    return DeadLetter(None, "shard", at_ms, evidence[:_EVIDENCE_CHARS], payload=message.data)


def refused(report: Delivered, letter: DeadLetter) -> FoundBatch | None:
    """A batch that buries discoveries and counts their links as refused: they were accepted, and are known nowhere.

    None when they cannot be read: then nobody can say how many there were.
    """
    try:
        message = decode_discoveries(report.data)
    except Malformed:
        return None
    mark = ProducerMark(CrawlId(message.crawl), message.producer, message.n, message.total)
    return FoundBatch(((mark, (), sum(len(origin.links) for origin in message.origins)),), (letter,))


def _crawl_of(kind: ReportKind, data: bytes) -> CrawlId | None:
    try:
        report = decode_discoveries(data) if kind == "discovery" else decode_report(data)
    except Malformed:
        return None
    crawl = 0 if isinstance(report, Unreadable) else report.crawl
    return CrawlId(crawl) if crawl else None
