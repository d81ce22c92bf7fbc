"""The row that an outcome leaves of a fetch. Pure."""

from shared.domain.fetch import FailureKind, Truncation
from shared.domain.frontier import COUNTED_LOSSES, End
from shared.domain.ids import CrawlId, Fingerprint, HostId
from shared.domain.ledger import Changes, FetchRow
from shared.domain.left_out import LeftOutLink, encoded, kept, losses
from shared.wire.messages import UrlOutcome


def broken_off(result: UrlOutcome) -> bool:
    """Return True if a page came in part only because the connection ended: it may come whole the next time."""
    return result.truncated == Truncation.DISCONNECT and 200 <= result.status < 300


def reason_of(result: UrlOutcome) -> str:
    """Return why the URL ended as it did, as tallies and rows name it."""
    if broken_off(result):
        return FailureKind.RESET
    return f"http_{result.status}" if result.end == End.ANSWERED else (result.reason or "other")


def fetch_row(
    crawl_id: CrawlId, host_id: HostId, fingerprint: Fingerprint, result: UrlOutcome, *, page: bool
) -> FetchRow:
    """Return the row of the URL's last fetch; `page`: its record belongs in the index."""
    record = result.record
    return FetchRow(
        crawl_id=crawl_id,
        host_id=host_id,
        fingerprint=fingerprint,
        at_ms=result.at_ms,
        status=result.status,
        page=page,
        reason=reason_of(result) if not page else None,
        detail=result.detail or None,
        latency_ms=result.latency_ms,
        size=result.size,
        mime=result.mime or None,
        digest=result.digest or None,
        segment=record.segment if record else None,
        offset=record.offset if record else None,
        length=record.length if record else None,
        etag=result.etag,
        last_modified=result.last_modified,
        location=result.location,
        title=result.title,
        links=result.links,
        truncated=result.truncated[:16] or None,
        links_found=result.found if result.found >= 0 else None,
        left_out=encoded({each.reason: each.n for each in result.left_out}),
    )


def count_losses(changes: Changes, row: FetchRow, result: UrlOutcome, flags: int) -> int:
    """Count what the fetch left out or got in part; return the URL's flags. A repeated fetch replaces the counts."""
    for each in result.left_out:
        for url in each.examples:
            changes.left_out.append(LeftOutLink(row.crawl_id, each.reason, kept(url), row.host_id, row.fingerprint))
    if flags & COUNTED_LOSSES:
        changes.losses_again.append(row)
        return flags
    counts = losses(row.page, row.truncated, row.left_out)
    if not counts:
        return flags
    for kind, key, n in counts:
        changes.tallies[row.crawl_id, kind, key] += n
    return flags | COUNTED_LOSSES
