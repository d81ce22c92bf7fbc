"""Routes for tools that replay a crawl: a CDX server, as pywb queries it, and the bytes of WARC files."""

import json
import re
from collections.abc import AsyncGenerator
from enum import StrEnum
from functools import partial
from typing import Annotated, Any, Final

from fastapi import Path, Query, Request, Response

from api.http.deps import Served, Services, problems
from api.http.errors import ApiProblem, ProblemKind
from api.http.fields import FieldError
from api.http.routing import Router
from api.http.streamed import BrokenOff, Streamed
from api.routes.pages import archive_of
from api.routes.urls import Name
from api.schemas.pages import SEGMENT_NAME, TIME_DIGITS
from shared.domain.archive.cdx_query import CdxMatch, CdxQuery, CdxSort, cdx_query
from shared.domain.archive.cdxj import IndexRow, cdxj_line
from shared.domain.web.url import MAX_URL_CHARS, partition_of
from shared.ports.archive import PageArchive, RecordUnreadable
from shared.ports.catalog import Missing

router = Router(prefix="/v1/crawls/{name}", tags=["pages"], responses=problems(404))

MAX_CAPTURES: Final = 20_000
"""The greatest `limit` of a query of the CDX server."""

DEFAULT_CAPTURES: Final = 1_000
_PIECE: Final = 256 << 10
_RANGE: Final = re.compile(r"bytes=(?:(\d{1,18})-(\d{0,18})|-(\d{1,18}))")
_BINARY: Final = "application/octet-stream"

_DIGITS: Final = "The first digits of a time as yyyymmddhhmmss, in UTC"


class CdxOutput(StrEnum):
    """The form of a CDX response. TEXT: lines of a CDXJ index. JSON: one JSON object on each line."""

    TEXT = "text"
    JSON = "json"


_LINES: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "One line for each capture.",
        "content": {
            "text/x-cdxj": {"schema": {"type": "string"}},
            "application/x-ndjson": {"schema": {"type": "string"}},
        },
    }
}
_BYTES: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "The whole file as far as it is written.",
        "content": {_BINARY: {"schema": {"type": "string", "format": "binary"}}},
    },
    206: {
        "description": "The bytes that the header Range asks for, as far as they are written.",
        "content": {_BINARY: {"schema": {"type": "string", "format": "binary"}}},
    },
    **problems(404, ProblemKind.NO_ARCHIVE, ProblemKind.RANGE, 429),
}


@router.get("/cdx", summary="Query captures", response_class=Response, responses=_LINES)
async def query_captures(
    name: Name,
    served: Served,
    url: Annotated[
        str,
        Query(
            min_length=1,
            max_length=MAX_URL_CHARS,
            description="The URL. Without `matchType`, a `*` at its end means `prefix`, and `*.` before it `domain`.",
            examples=["https://a.test/"],
        ),
    ],
    match_type: Annotated[
        CdxMatch | None,
        Query(alias="matchType", description="Which captures match: those of the URL, below it, or of its host."),
    ] = None,
    since: Annotated[
        str,
        Query(
            alias="from",
            pattern=TIME_DIGITS,
            description=f"{_DIGITS}. Earlier captures are left out.",
            examples=["203001"],
        ),
    ] = "",
    until: Annotated[
        str,
        Query(
            alias="to", pattern=TIME_DIGITS, description=f"{_DIGITS}. Later captures are left out.", examples=["2030"]
        ),
    ] = "",
    closest: Annotated[
        str,
        Query(
            pattern=TIME_DIGITS,
            description=f"{_DIGITS}. The capture nearest to it comes first.",
            examples=["20300101080000"],
        ),
    ] = "",
    sort: Annotated[
        CdxSort, Query(description="The order. `closest` sorts by the distance from the time `closest`.")
    ] = CdxSort.DEFAULT,
    limit: Annotated[int, Query(ge=1, le=MAX_CAPTURES, description="How many lines at most.")] = DEFAULT_CAPTURES,
    output: Annotated[CdxOutput, Query(description="The form of the lines.")] = CdxOutput.TEXT,
) -> Response:
    """Return the captures of a URL, as a CDX server does: pages, redirects and errors, with the place of each record.

    A place is the name of a WARC file, an offset and a length. The parameters are those of pywb's CDX server. For the
    query, `http://a.test/`, `https://a.test/` and `https://www.a.test/` are the same URL. A query that would read more
    than 20,000 captures is refused.
    """
    crawl = await served.catalog.crawl(name)
    found = cdx_query(url, match_type)
    if found is None:
        wrong = FieldError("query.url", "is not an http or https URL", "write it as https://example.org/")
        raise ApiProblem(ProblemKind.INVALID, "the URL is not valid", errors=[wrong])
    location, match, key = found
    query = CdxQuery(location, match, key, since, until, closest, sort, limit)
    rows = await served.catalog.captures(crawl.crawl_id, query, partition_of(location.host, served.partitions))
    if rows is None:
        wrong = FieldError("query.matchType", "matches too many captures", "name a longer prefix or a single URL")
        raise ApiProblem(ProblemKind.INVALID, "the query matches too many captures", errors=[wrong])
    write, media_type = (cdxj_line, "text/x-cdxj") if output is CdxOutput.TEXT else (_object, "application/x-ndjson")
    lines = [write(row) + b"\n" for row in query.selected(rows)]
    return Response(b"".join(lines), media_type=media_type)


@router.get("/segments/{segment}", summary="Get a WARC file", response_class=Response, responses=_BYTES)
async def get_segment(
    name: Name,
    segment: Annotated[
        str,
        Path(
            pattern=SEGMENT_NAME,
            description="The file's name, as captures and pages have it.",
            examples=["7-20300101080000-worker-1-0001.warc.gz"],
        ),
    ],
    served: Served,
    request: Request,
) -> Response:
    """Return a WARC file of the crawl, or the range of its bytes that a Range header asks for.

    Only one range is supported. A worker may still be writing the file. A master serves a bounded number of files and
    exports at a time.
    """
    crawl = await served.catalog.crawl(name)
    archive = archive_of(served)
    if not segment.startswith(f"{crawl.crawl_id}-"):
        raise Missing(f"the crawl {name!r} has no WARC file {segment}")
    try:
        size = await archive.aside(lambda: archive.size(segment))
    except RecordUnreadable as error:
        raise Missing(f"this master's archive has no WARC file {segment}") from error
    headers = {"Content-Disposition": f'attachment; filename="{segment}"', "Accept-Ranges": "bytes"}
    asked = _RANGE.fullmatch(request.headers.get("range", "").strip())
    begin, end = 0, size
    if asked is not None:
        begin, end = _range(asked, size)
        if begin >= end:
            raise ApiProblem(
                ProblemKind.RANGE, f"{segment} has {size} bytes", headers={"Content-Range": f"bytes */{size}"}
            )
        headers["Content-Range"] = f"bytes {begin}-{end - 1}/{size}"
    headers["Content-Length"] = str(end - begin)
    rest = _bytes(served, archive, segment, begin, end)
    begun = await anext(rest, b"")  # An error before the first bytes can still be answered with a problem.
    return Streamed(begun, rest, status_code=200 if asked is None else 206, headers=headers, media_type=_BINARY)


async def _bytes(
    served: Services, archive: PageArchive, segment: str, begin: int, end: int
) -> AsyncGenerator[bytes, None]:
    """Yield the bytes of a WARC file from `begin` up to, but not including, `end`.

    Raise BrokenOff if the file ends before `end`. A file can get shorter if it is truncated after a crash.
    """
    with served.exports.slot():
        while begin < end:
            piece = await archive.aside(partial(archive.piece, segment, begin, min(_PIECE, end - begin)))
            if not piece:
                raise BrokenOff(f"{segment} ends at byte {begin}, and {end} were promised")
            begin += len(piece)
            yield piece


def _range(asked: re.Match[str], size: int) -> tuple[int, int]:
    """Return the bytes that a Range header asks for (RFC 9110 §14.1.2): the first byte, and the byte after the last.

    - `asked`: the header, as matched by `_RANGE`.
    - `size`: the size of the file in bytes.

    For example, `bytes=0-9` gives (0, 10). If the file has none of the bytes, the second number is at most the first:
    `bytes=80-` gives (80, 50) if `size` is 50.
    """
    first, last, suffix = asked.groups()
    if suffix is not None:
        return max(0, size - int(suffix)), size
    return int(first), min(size, int(last) + 1 if last else size)


def _object(row: IndexRow) -> bytes:
    """Return the capture as one line of JSON with `urlkey`, `timestamp` and the fields of its CDXJ line."""
    key, timestamp, fields = cdxj_line(row).split(b" ", 2)
    return json.dumps({"urlkey": key.decode(), "timestamp": timestamp.decode(), **json.loads(fields)}).encode()
