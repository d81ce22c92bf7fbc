"""/v1/crawls/{name}/seeds: URLs to start from, a few as JSON or millions as a stream."""

import zlib
from collections.abc import AsyncIterator
from typing import Annotated, Any, Final

import msgspec
from fastapi import Header, Path, Request
from starlette.requests import ClientDisconnect

from api.control.uploading import SeedUpload
from api.deps import By, Served, needs, problem_content, problems
from api.errors import Kind, Problem, problem_of
from api.fields import FieldError
from api.routing import Router
from api.schemas.crawls import NAME
from api.schemas.seeds import SeedReport, report_body
from shared.domain.access import Role
from shared.domain.crawl import Priority, decode_spec
from shared.domain.crawl_state import Standing, takes_seeds
from shared.domain.errors import Transient
from shared.domain.url import MAX_URL_CHARS
from shared.ports.catalog import Missing

router = Router(prefix="/v1/crawls/{name}/seeds", tags=["seeds"])

LINE_BYTES: Final = 4 * MAX_URL_CHARS
_PIECE: Final = 1 << 18
_LINES: Final = ("text/plain", "application/jsonl")


class _Seed(msgspec.Struct, forbid_unknown_fields=True):
    url: str
    priority: Priority = 0


class _Seeds(msgspec.Struct, forbid_unknown_fields=True):
    seeds: list[_Seed | str]


_line: Final = msgspec.json.Decoder(_Seed | str)
_whole: Final = msgspec.json.Decoder(_Seeds)
_SEED_SCHEMA: Final[dict[str, Any]] = {"anyOf": [{"type": "string"}, {"$ref": "#/components/schemas/Seed"}]}
_TEXT: Final = {"type": "string", "format": "binary"}
"""Of any length, in UTF-8: clients take it from a file."""

_BODY: Final[dict[str, Any]] = {
    "required": True,
    "content": {
        "application/json": {
            "schema": {
                "type": "object",
                "required": ["seeds"],
                "additionalProperties": False,
                "properties": {"seeds": {"type": "array", "items": _SEED_SCHEMA}},
            },
            "example": {"seeds": ["https://example.org/", {"url": "https://example.org/news", "priority": 5}]},
        },
        "application/jsonl": {
            "schema": {
                **_TEXT,
                "description": "A URL as a JSON string, or an object with `url`, a line.",
            },
            "example": '"https://example.org/"\n{"url": "https://example.org/news", "priority": 5}\n',
        },
        "text/plain": {"schema": {**_TEXT, "description": "A URL a line; blank lines and # are skipped."}},
    },
}


@router.post(
    "",
    summary="Add seeds",
    dependencies=[needs(Role.OPERATOR)],
    operation_id="add_seeds",
    openapi_extra={"requestBody": _BODY},
    responses={
        **problems(404, Kind.ILLEGAL_TRANSITION, 413, 415),
        429: {"description": "Owners have too much waiting; `accepted` and `durable_lines` say what is kept already.",
              "content": problem_content(Kind.BUSY)},
    },
)  # fmt: skip
async def add_seeds(
    name: Annotated[str, Path(pattern=NAME)],
    request: Request,
    served: Served,
    by: By,
    content_type: Annotated[str, Header(include_in_schema=False)] = "application/json",
    content_encoding: Annotated[
        str, Header(json_schema_extra={"enum": ["identity", "gzip"]}, description="`gzip` or none.")
    ] = "identity",
    idempotency_key: Annotated[
        str | None,
        Header(
            max_length=255, description="The whole upload repeated under the same name within 30 days changes nothing."
        ),
    ] = None,
) -> SeedReport:
    """Accepted means durable: what is counted so is never lost. Any master takes seeds; no leader is needed.

    A crawl that was complete runs again with them; one that was cancelled, or has spent its budget, is started first.
    An upload that broke off is repeated as a whole under its Idempotency-Key, or from the line after `durable_lines`.
    Where the crawl is deleted before the upload ends, the answer is 404, and its seeds are gone with it.
    """
    crawl = await served.catalog.crawl(name)
    if not takes_seeds(Standing(crawl.state, crawl.resumes_as, crawl.finished_reason)):
        detail = f"the crawl is finished ({crawl.finished_reason}), and would not fetch them"
        raise Problem(Kind.ILLEGAL_TRANSITION, detail, hint="start it again first", legal=["start"])
    kind = content_type.partition(";")[0].strip().lower()
    if kind != "application/json" and kind not in _LINES:
        raise Problem(Kind.MEDIA, f"{kind} is not understood", hint=f"send application/json or {', '.join(_LINES)}")
    stored = None if idempotency_key is None else f"{by.key_id} {idempotency_key}"
    upload = SeedUpload(
        served.broker,
        crawl.crawl_id,
        crawl.revision,
        decode_spec(crawl.spec),
        served.partitions,
        stored,
        refused_at=served.tuning().uploads_refused_at,
        held=served.held,
    )
    pieces = _plain(request, content_encoding.strip().lower())
    try:
        if kind == "application/json":
            await _take_whole(upload, pieces, served.body_bytes)
        else:
            async for line in _lines(pieces):
                await _take_line(upload, line, plain=kind == "text/plain")
        report = report_body(await upload.finish())
        if (await served.catalog.crawl(name)).crawl_id != crawl.crawl_id:
            raise Missing(f"the crawl {name!r} was deleted meanwhile, and its seeds with it: another one has its name")
        return report
    except (Transient, Problem) as error:
        raise _broken_off(upload, problem_of(error)) from error


def _broken_off(upload: SeedUpload, problem: Problem) -> Problem:
    """The problem with what is durable in spite of it."""
    counts = upload.counts
    problem.accepted, problem.durable_lines = counts.accepted, counts.durable_lines
    if counts.durable_lines:
        problem.hint = problem.hint or f"send what follows line {counts.durable_lines} again"
    return problem


async def _take_whole(upload: SeedUpload, pieces: AsyncIterator[bytes], most: int) -> None:
    parts: list[bytes] = []
    size = 0
    async for piece in pieces:
        size += len(piece)
        if size > most:
            raise Problem(Kind.TOO_LARGE, f"a JSON body may have {most} bytes", hint="send them line by line")
        parts.append(piece)
    try:
        seeds = _whole.decode(b"".join(parts)).seeds
    except msgspec.ValidationError as error:
        said, _, place = str(error).partition(" - at `$")
        wrong = FieldError(place.strip("`.") or "", said)
        raise Problem(Kind.INVALID, "the seeds are not valid", errors=[wrong]) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Problem(Kind.MALFORMED, f"the body is not JSON: {error}") from error
    for seed in seeds:
        await upload.take(*((seed,) if isinstance(seed, str) else (seed.url, seed.priority)))


async def _take_line(upload: SeedUpload, line: bytes, *, plain: bool) -> None:
    text = line.strip()
    if not text or (plain and text.startswith(b"#")):
        upload.counts.lines += 1
        return
    if len(text) > LINE_BYTES:
        upload.reject("", f"the line is longer than {LINE_BYTES} bytes")
        return
    try:
        seed = text.decode() if plain else _line.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        upload.reject(text.decode(errors="replace"), f"the line cannot be read: {error}")
        return
    await upload.take(*((seed,) if isinstance(seed, str) else (seed.url, seed.priority)))


async def _lines(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The lines; of one that is too long no more than that is kept."""
    rest = b""
    async for piece in pieces:
        *whole, rest = (rest + piece).split(b"\n")
        for line in whole:
            yield line
        if len(rest) > LINE_BYTES:
            rest = rest[: LINE_BYTES + 1]
    if rest:
        yield rest


async def _plain(request: Request, coding: str) -> AsyncIterator[bytes]:
    """The body without content coding, in pieces of bounded size: nothing in it can make us hold more."""
    if coding not in ("identity", "gzip"):
        raise Problem(Kind.MEDIA, f"content coding {coding} is not understood", hint="send gzip or none")
    gunzip, within = zlib.decompressobj(31), False
    try:
        async for piece in request.stream():
            if coding == "identity":
                yield piece
                continue
            while piece:
                yield gunzip.decompress(piece, _PIECE)
                piece, within = gunzip.unconsumed_tail, True
                if gunzip.eof:  # another member follows, or nothing
                    piece = gunzip.unused_data
                    gunzip, within = zlib.decompressobj(31), False
        if within:
            yield gunzip.flush()
            if not gunzip.eof:
                raise Problem(Kind.MALFORMED, "the gzip stream is cut short")
    except zlib.error as error:
        raise Problem(Kind.MALFORMED, f"the body is not gzip: {error}") from error
    except ClientDisconnect as error:
        raise Problem(Kind.MALFORMED, "the connection was closed before the end of the body") from error
