"""/v1/crawls/{name}/start and the other verbs, and /v1/commands, which shows how many partitions applied a command."""

import asyncio
import uuid
from collections.abc import Mapping
from typing import Annotated, Any, Final

import structlog
from fastapi import Path, Response

from api.crawls.commands import publish_command
from api.http.cached_reads import described
from api.http.deps import By, Expected, Served, Services, etag, problems
from api.http.errors import ProblemKind
from api.http.routing import Router
from api.schemas.crawls import NAME, CommandStatus, CrawlVerbResult, command_body
from shared.domain.crawl.state import CrawlStatus, Verb, status_after
from shared.domain.errors import Transient
from shared.domain.frontier.commands import CommandKind, collection_of
from shared.domain.ids import CrawlId, Partition
from shared.domain.reads.declared import Actor, summary_of
from shared.ports.catalog import Missing, Stale

log = structlog.get_logger("orb.api")

router = Router(tags=["crawls"])

COMMAND_S: Final = 10.0
"""Maximum seconds that a request waits until the broker has stored its command."""

_VERBS: Final = {
    Verb.START: (
        "Start a crawl",
        "Publish the seeds and run the crawl, for the first time or again after it finished.",
    ),
    Verb.REFRESH: (
        "Refresh a crawl",
        "Fetch what is new and what is due now, and then finish with the reason `refreshed`. Its spec must have "
        "`recrawl`.",
    ),
    Verb.PAUSE: (
        "Pause a crawl",
        "Start no further request. Requests in progress are finished and reported; other URLs go back to their queues.",
    ),
    Verb.RESUME: ("Resume a crawl", "Resume the crawl where it was paused."),
    Verb.CANCEL: (
        "Cancel a crawl",
        "Finish the crawl now and keep its results. Queued URLs wait until `start` continues the crawl.",
    ),
    Verb.RESET: (
        "Reset a crawl",
        "Start again from the seeds, with the same spec and a new id. The results of the old id are deleted.",
    ),
    Verb.RETRY_FAILED: ("Retry failed URLs", "Queue every failed URL again, with new attempts."),
}


def _route(verb: Verb) -> None:
    summary, description = _VERBS[verb]

    @router.post(
        f"/v1/crawls/{{name}}/{verb}",
        summary=summary,
        description=description,
        responses=problems(404, ProblemKind.ILLEGAL_TRANSITION, 412),
        operation_id=f"{verb.replace('-', '_')}_crawl",
    )
    async def turn(
        name: Annotated[str, Path(pattern=NAME)], served: Served, by: By, expected: Expected, response: Response
    ) -> CrawlVerbResult:
        command = None
        if verb is Verb.RETRY_FAILED:
            # Published before the state changes. The check for finished crawls starts again after a verb, and waits for
            # commands that were published before (FinishedCheck). So the crawl does not finish without the retries.
            command = await _retry(served, name, expected, by)
        before, made = await served.catalog.turn(name, verb, expected=expected, actor=by, now_ms=served.clock.unix_ms())
        served.plane.wake()
        if verb is Verb.RESET:
            command = await collect(served, before.crawl_id, by)
        body, tag = described(made, served)
        response.headers.update(etag(tag))
        return CrawlVerbResult(crawl=body, command=command)


for _verb in _VERBS:
    _route(_verb)


@router.get(
    "/v1/commands/{command_id}", tags=["commands"], summary="Get a command",
    responses=problems(404),
)  # fmt: skip
async def get_command(command_id: Annotated[str, Path(max_length=64)], served: Served) -> CommandStatus:
    """Return a command, with the number of partitions that have applied it so far.

    The answer is 404 for a command that was dropped before it was sent, because a later change has replaced it.
    """
    command = await served.catalog.command(command_id)
    if command is None:
        raise Missing(
            f"there is no command {command_id!r}: it is unknown or no longer kept, or a later change has replaced it "
            "before it was sent"
        )
    return command_body(command)


async def collect(served: Services, crawl_id: CrawlId, by: Actor) -> str:
    """Publish the command that removes a deleted crawl's rows. Return the id of the command.

    If the broker does not answer, the leader publishes the command later.
    """
    command_id = collection_of(crawl_id)
    try:
        return await commanded(served, command_id, crawl_id, CommandKind.DELETE, {}, by)
    except Transient as error:
        log.warning("crawl_purge.delayed", crawl=crawl_id, error=str(error))
        return command_id


async def commanded(
    served: Services,
    command_id: str,
    crawl_id: CrawlId,
    kind: CommandKind,
    args: dict[str, object],
    by: Actor,
    partition: Partition | None = None,
    args_by_partition: Mapping[Partition, Mapping[str, Any]] | None = None,
) -> str:
    """Publish a command to the owners of some or all partitions. Return the command's id.

    There are two ways to call this:

    - Without `args_by_partition`: send the command with the arguments `args` to `partition`. If `partition` is None,
      send the command to all partitions.
    - With `args_by_partition`, if the arguments differ between partitions: send the command to each partition in
      `args_by_partition`, with the arguments of the partition. `args` is not sent, but describes the command in the
      database.

    The database records the command with `args` and the requester `by`. Raise Transient if the broker did not store the
    command in time.
    """
    partitions = [Partition(p) for p in range(served.partitions)] if partition is None else [partition]
    try:
        async with asyncio.timeout(COMMAND_S):
            await publish_command(
                served.catalog,
                served.broker,
                command_id,
                crawl_id,
                kind,
                args,
                partitions,
                actor=by,
                now_ms=served.clock.unix_ms(),
                args_by_partition=args_by_partition,
            )
    except TimeoutError as error:
        raise Transient(f"the broker did not take command {command_id} in time: ask again") from error
    return command_id


async def _retry(served: Services, name: str, expected: frozenset[str] | None, by: Actor) -> str:
    crawl = await served.catalog.crawl(name)
    if expected is not None and crawl.tag not in expected:
        raise Stale(crawl.tag)
    recrawls = summary_of(crawl.spec).recrawl.used
    status_after(Verb.RETRY_FAILED, CrawlStatus(crawl.state, crawl.resumes_as), recrawls=recrawls)
    command_id = f"retry-{uuid.uuid4().hex}"
    return await commanded(served, command_id, crawl.crawl_id, CommandKind.RETRY_FAILED, {}, by)
