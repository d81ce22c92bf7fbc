"""Reports that can never be applied, as dead letters that say whose they were. Pure."""

from shared.domain.ids import CrawlId
from shared.domain.ledger import DeadLetter, FoundBatch, ProducerMark
from shared.ports.broker import Delivered, ReportKind
from shared.wire.messages import Malformed, decode_discoveries, decode_report

_EVIDENCE_CHARS = 2000


def letter_of(kind: ReportKind, report: Delivered, evidence: str) -> DeadLetter:
    """The dead letter of a report, under its crawl where it can be read and has one."""
    at_ms = report.at_ns // 1_000_000
    return DeadLetter(_crawl_of(kind, report.data), kind, at_ms, evidence[:_EVIDENCE_CHARS], payload=report.data)


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
        crawl = decode_discoveries(data).crawl if kind == "discovery" else decode_report(data).crawl
    except Malformed:
        return None
    return CrawlId(crawl) if crawl else None
