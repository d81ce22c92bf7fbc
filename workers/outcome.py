"""Builds the outcome of a URL, which a worker reports. Texts from servers are truncated to bound the message. Pure."""

from typing import Final, assert_never

from shared.domain.archive.model import Archived
from shared.domain.explain.excluded_links import LINKS_PER_PAGE, UNLISTED
from shared.domain.explain.sentences import NEEDS_SCRIPTS
from shared.domain.frontier.states import UrlEnd
from shared.domain.ids import Fingerprint
from shared.domain.web.fetch import Answer, FetchFailed, Truncation
from shared.domain.web.robots import Unreachable
from shared.wire.messages import LeftOut, Record, UrlOutcome
from workers.page_reading import PageReading
from workers.robots import Robots

_LOCATION: Final = 2_048
_DETAIL: Final = 500
_VALIDATOR: Final = 1_024


def answered(
    fingerprint: Fingerprint,
    answer: Answer,
    reading: PageReading,
    stored: Archived | None,
    *,
    at_ms: int,
    retry_after_ms: int,
    mark: bytes = b"",
) -> UrlOutcome:
    """Return the outcome of a URL for which a response came, whatever its HTTP status is.

    - `stored`: the location of the response in the archive. None if the crawl's spec excludes the media type from the
      archive, or even from fetching. In the latter case, only the head of the response came.
    - `at_ms`: when the URL was requested (Unix ms).
    - `retry_after_ms`: the wait that the response requires, -1 if it requires none.
    - `mark`: the hash by which the crawl compares the page's content (`revisits.content_mark`).
    """
    place = None if stored is None else stored.location
    # A 304 would hide that the date of a directive is over. So the next request must have no condition.
    etag, last_modified = ("", "") if reading.dated else (answer.header("etag"), answer.header("last-modified"))
    return UrlOutcome(
        fingerprint=fingerprint,
        end=UrlEnd.ANSWERED,
        at_ms=at_ms,
        status=answer.status,
        detail="; ".join(filter(None, _notes(answer, reading)))[:_DETAIL],
        latency_ms=round(answer.timings.total_s * 1000),
        size=len(answer.body),
        mime=reading.mime,
        digest=b"" if stored is None else stored.digest,
        record=None if place is None else Record(place.segment, place.offset, place.length),
        etag=_validator(etag),
        last_modified=_validator(last_modified),
        location=reading.location[:_LOCATION] if reading.location is not None else None,
        title=reading.title,
        links=reading.links,
        retry_after_ms=retry_after_ms,
        truncated=_truncated(answer),
        found=reading.links_found,
        not_indexed=reading.not_indexed or "",
        left_out=_left_out(reading),
        mark=mark,
        entries=reading.entries,
    )


def _left_out(reading: PageReading) -> list[LeftOut]:
    """Return the entries for `UrlOutcome.left_out`: counts of the links of one page. There are two kinds:

    - One entry for each reason for which links are not reported: how many links, and some of their URLs.
    - `LeftOut(UNLISTED, n)`: the command `rediscover` cannot find n links of the page in the archive. This entry counts
      reported and unreported links alike. It is left out if n is 0, or if the page has no unreported links.

    Example: an HTML page has 1000 links. 3 are on other hosts, so they are not reported. The archive has room for 993
    links. The result is `[LeftOut("other_host", 3, [...]), LeftOut(UNLISTED, 7)]`.
    """
    left_out = [LeftOut(reason, n, list(reading.examples.get(reason, ()))) for reason, n in reading.left_out.items()]
    return [*left_out, LeftOut(UNLISTED, reading.unlisted)] if left_out and reading.unlisted else left_out


def failed(fingerprint: Fingerprint, failure: FetchFailed, *, at_ms: int) -> UrlOutcome:
    """Return the outcome of a URL whose fetch gave no usable response. Its reason is the kind of failure."""
    return UrlOutcome(
        fingerprint=fingerprint,
        end=UrlEnd.FAILED,
        at_ms=at_ms,
        reason=failure.kind.value,
        detail=failure.detail[:_DETAIL],
        latency_ms=round(failure.timings.total_s * 1000),
    )


def unreachable(fingerprint: Fingerprint, robots: Robots, *, at_ms: int) -> UrlOutcome:
    """Return the outcome of a URL that was not requested, because `robots`, its origin's robots.txt, is unreachable."""
    detail = robots.policy.reason[:_DETAIL] if isinstance(robots.policy, Unreachable) else ""
    return UrlOutcome(
        fingerprint=fingerprint,
        end=UrlEnd.FAILED,
        at_ms=at_ms,
        reason=robots.failure,
        detail=detail,
        retry_after_ms=robots.retry_after_ms,
    )


def denied(fingerprint: Fingerprint, reason: str, *, at_ms: int) -> UrlOutcome:
    """Return the outcome of a URL that the rule `reason` forbids to request."""
    return UrlOutcome(fingerprint=fingerprint, end=UrlEnd.DENIED, at_ms=at_ms, reason=reason)


def _notes(answer: Answer, reading: PageReading) -> tuple[str, ...]:
    return _incomplete(answer), _links_cut(reading), reading.problem, NEEDS_SCRIPTS * reading.needs_scripts


def _truncated(answer: Answer) -> str:
    """Return why a body is incomplete, as the value that outcomes use. Return "" if it is complete."""
    if answer.truncated is not None:
        return answer.truncated.value
    if answer.decoded_truncated:
        return "decoded"
    return "undecodable" if answer.decode_error else ""


def _links_cut(reading: PageReading) -> str:
    cut = reading.left_out.get(LINKS_PER_PAGE, 0)
    return f"{cut} links beyond extract.max_links_per_page were left out" if cut else ""


def _incomplete(answer: Answer) -> str:
    """Return why the page is incomplete, as a phrase for people. Return "" if it is complete."""
    match answer.truncated:
        case Truncation.LENGTH:
            return "the body was cut at fetch.max_body_bytes"
        case Truncation.TIME:
            return "the body was cut when fetch.total_timeout_s was over"
        case Truncation.DISCONNECT:
            return "the body was cut: the connection ended before it did"
        case None:
            pass
        case never:
            assert_never(never)
    if answer.decoded_truncated:
        return "the page was read as far as fetch.max_decoded_bytes"
    return answer.decode_error or ""


def _validator(value: str | None) -> str | None:
    """Return `value`, an ETag or Last-Modified, or None if it is too long. A truncated validator would be useless."""
    return value if value is not None and len(value) <= _VALIDATOR else None
