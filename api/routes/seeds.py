"""/v1/crawls/{name}/seeds: add seeds to a crawl, a few as JSON or millions as a stream of lines."""

import asyncio
import zlib
from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Any, Final

import msgspec
from fastapi import Header, Path, Request
from starlette.requests import ClientDisconnect

from api.crawls.seed_upload import SeedUpload
from api.http.deps import By, Served, problem_content, problems
from api.http.errors import ApiProblem, ProblemKind, problem_of
from api.http.fields import FieldError
from api.http.routing import Router
from api.schemas.crawls import NAME
from api.schemas.seeds import SeedReport, report_body
from shared.domain.crawl.priority_rules import Priority
from shared.domain.crawl.spec import decode_spec
from shared.domain.crawl.state import CrawlStatus, takes_seeds
from shared.domain.errors import Transient
from shared.domain.frontier.seed_contexts import SeedContext, context_of, context_problem, problems_of
from shared.domain.ops.watermarks import reason_of
from shared.domain.web.url import MAX_URL_CHARS
from shared.ports.catalog import Missing

router = Router(prefix="/v1/crawls/{name}/seeds", tags=["seeds"])

LINE_BYTES: Final = 4 * MAX_URL_CHARS
_PIECE: Final = 1 << 18
_SHOWN: Final = 20
_LINES: Final = ("text/plain", "application/jsonl")


class _Seed(msgspec.Struct, forbid_unknown_fields=True):
    url: str
    priority: Priority = 0
    labels: dict[str, str] = {}
    source: str = ""


class _Seeds(msgspec.Struct, forbid_unknown_fields=True):
    seeds: list[_Seed | str]


_line: Final = msgspec.json.Decoder(_Seed | str)
_whole: Final = msgspec.json.Decoder(_Seeds)
_SEED_SCHEMA: Final[dict[str, Any]] = {"anyOf": [{"type": "string"}, {"$ref": "#/components/schemas/Seed"}]}
_TEXT: Final = {"type": "string", "format": "binary"}
"""The OpenAPI schema of a text body of any length in UTF-8. Its format makes generated clients send a file."""

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
                "description": "Each line is a URL as a JSON string, or an object with `url`, and with `priority`, "
                "`labels` and `source` as needed.",
            },
            "example": '"https://example.org/"\n{"url": "https://example.org/news", "labels": {"team": "search"}}\n',
        },
        "text/plain": {
            "schema": {**_TEXT, "description": "One URL a line. Blank lines and lines that begin with # are skipped."}
        },
    },
}


@router.post(
    "",
    summary="Add seeds",
    openapi_extra={"requestBody": _BODY},
    responses={
        **problems(404, ProblemKind.ILLEGAL_TRANSITION, 413, 415),
        429: {"description": "Too many discoveries are waiting. `durable_lines` need not be sent again, and "
                             "`accepted`, `duplicate` and `rejected` count these lines.",
              "content": problem_content(ProblemKind.BUSY)},
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
            max_length=255, description="A repeat of the whole upload with the same key within 30 days changes nothing."
        ),
    ] = None,
) -> SeedReport:
    """Add seeds to a crawl. Accepted seeds are stored durably. Any master accepts them; no leader is needed.

    A crawl that finished as `complete` runs again with new seeds. A crawl that was cancelled or has spent its budget
    must be started first. After an interruption, repeat the whole upload with the same Idempotency-Key, or send the
    lines after `durable_lines`. If the crawl is deleted during the upload, the answer is 404, and the seeds are deleted
    with the crawl.
    """
    crawl = await served.catalog.crawl(name)
    if not takes_seeds(CrawlStatus(crawl.state, crawl.resumes_as, crawl.finished_reason)):
        detail = f"the crawl is finished ({crawl.finished_reason}), and would not fetch them"
        raise ApiProblem(ProblemKind.ILLEGAL_TRANSITION, detail, hint="start the crawl first", allowed_verbs=["start"])
    kind = content_type.partition(";")[0].strip().lower()
    if kind != "application/json" and kind not in _LINES:
        raise ApiProblem(
            ProblemKind.MEDIA, f"{kind} is not supported", hint=f"send application/json or {', '.join(_LINES)}"
        )
    stored = None if idempotency_key is None else f"{by.key_id} {idempotency_key}"
    upload = SeedUpload(
        served.broker,
        crawl.crawl_id,
        crawl.revision,
        decode_spec(crawl.spec),
        served.partitions,
        stored,
        refused_at=served.tuning().seed_upload_refusal_ratio,
        held=lambda: reason_of(served.pressure()),
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
    except (Transient, ApiProblem) as error:
        raise _broken_off(upload, problem_of(error)) from error


def _broken_off(upload: SeedUpload, problem: ApiProblem) -> ApiProblem:
    """Return `problem` with the results of the lines that the interrupted upload has stored durably.

    If the upload stored lines and `problem` has no hint, set a hint. It says after which line the client must continue.
    """
    problem.upload = upload.durable
    if upload.durable.durable_lines:
        problem.hint = problem.hint or f"send what follows line {upload.durable.durable_lines} again"
    return problem


async def _take_whole(upload: SeedUpload, pieces: AsyncIterator[bytes], max_count: int) -> None:
    parts: list[bytes] = []
    size = 0
    async for piece in pieces:
        size += len(piece)
        if size > max_count:
            raise ApiProblem(
                ProblemKind.TOO_LARGE, f"a JSON body may have {max_count} bytes", hint="send them line by line"
            )
        parts.append(piece)
    try:
        seeds = _whole.decode(b"".join(parts)).seeds
    except msgspec.ValidationError as error:
        message, _, place = str(error).partition(" - at `$")
        wrong = FieldError(place.strip("`.") or "", message)
        raise ApiProblem(ProblemKind.INVALID, "the seeds are not valid", errors=[wrong]) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ApiProblem(ProblemKind.MALFORMED, f"the body is not JSON: {error}") from error
    contexts: list[SeedContext | None] = []
    wrong_ones: list[FieldError] = []
    for number, seed in enumerate(seeds):
        context, problems = (None, ()) if isinstance(seed, str) else _context(seed)
        contexts.append(context)
        at = f"seeds[{number}]"
        wrong_ones += [FieldError(f"{at}.{path}" if path else at, message, hint) for path, message, hint in problems]
    if wrong_ones:
        raise ApiProblem(ProblemKind.INVALID, "the seeds are not valid", errors=wrong_ones[:_SHOWN])
    for seed, context in zip(seeds, contexts, strict=True):
        await upload.take(*((seed,) if isinstance(seed, str) else (seed.url, seed.priority, context)))


def _context(seed: _Seed) -> tuple[SeedContext | None, Sequence[tuple[str, str, str]]]:
    """Return the labels and source of a seed (None if it has neither), and the errors in them.

    An error has three parts: the wrong field of the seed (empty for the whole seed), a message and a hint. If there are
    errors, the labels and source must not be used.
    """
    if not seed.labels and not seed.source:
        return None, ()
    problems = list(problems_of(seed.labels, seed.source))
    context = None if problems else context_of(seed.labels, seed.source)
    if too_large := context_problem(context):
        problems.append(("", too_large, "shorten its labels or its source"))
    return context, problems


async def _take_line(upload: SeedUpload, line: bytes, *, plain: bool) -> None:
    text = line.strip()
    comment = plain and text.startswith(b"#")
    # A line that is too long may end in spaces only because its end was cut off, so its spaces count.
    if len(line) > LINE_BYTES and not comment:
        await upload.reject("", f"the line is longer than {LINE_BYTES} bytes")
        return
    if comment or not text:
        await upload.skip()
        return
    try:
        seed = text.decode() if plain else _line.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        await upload.reject(text.decode(errors="replace"), f"the line cannot be read: {error}")
        return
    if isinstance(seed, str):
        await upload.take(seed)
        return
    context, problems = _context(seed)
    if problems:
        path, message, hint = problems[0]
        await upload.reject(seed.url, f"{path or 'the seed'} {message} ({hint})")
        return
    await upload.take(seed.url, seed.priority, context)


async def _lines(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the lines of the body.

    A line over LINE_BYTES is cut to LINE_BYTES + 1 bytes, so that the caller can detect and reject it.
    """
    rest = b""
    async for piece in pieces:
        *whole, rest = (rest + piece).split(b"\n")
        for line in whole:
            yield line[: LINE_BYTES + 1]
        rest = rest[: LINE_BYTES + 1]
    if rest:
        yield rest


async def _plain(request: Request, coding: str) -> AsyncIterator[bytes]:
    """Yield the request body, decompressed if `coding` is gzip, in pieces of bounded size.

    Raise ApiProblem if the coding is not supported, the gzip data is damaged, or the client disconnects.
    """
    if coding not in ("identity", "gzip"):
        raise ApiProblem(ProblemKind.MEDIA, f"content coding {coding} is not supported", hint="send gzip or none")
    gunzip, within = zlib.decompressobj(31), False
    try:
        async for piece in request.stream():
            if coding == "identity":
                yield piece
                continue
            while piece:
                await asyncio.sleep(0)  # Pieces are inflated without a pause, so yield to other tasks.
                yield gunzip.decompress(piece, _PIECE)
                piece, within = gunzip.unconsumed_tail, True
                if gunzip.eof:  # Another gzip member may follow.
                    piece = gunzip.unused_data
                    gunzip, within = zlib.decompressobj(31), False
        if within:
            yield gunzip.flush()
            if not gunzip.eof:
                raise ApiProblem(ProblemKind.MALFORMED, "the gzip stream is truncated")
    except zlib.error as error:
        raise ApiProblem(ProblemKind.MALFORMED, f"the body is not gzip: {error}") from error
    except ClientDisconnect as error:
        raise ApiProblem(ProblemKind.MALFORMED, "the connection was closed before the end of the body") from error
