"""/v1/crawls/{name}/start and the other verbs, and /v1/commands: what an operator asks of a crawl."""

import asyncio
import uuid
from collections.abc import Mapping
from typing import Annotated, Any, Final

import structlog
from fastapi import Path, Response

from api.control.commanding import publish_command
from api.deps import By, Expected, Served, Services, etag, needs, problems
from api.errors import Kind
from api.routing import Router
from api.schemas.crawls import NAME, Command, CrawlTurn, command_body
from api.shown import described
from shared.domain.access import Role
from shared.domain.command import CommandKind, collection_of
from shared.domain.crawl_state import Standing, Verb, after
from shared.domain.declared import Actor
from shared.domain.errors import Transient
from shared.domain.ids import CrawlId, Partition
from shared.ports.catalog import Missing, Stale

log = structlog.get_logger("orb.api")

router = Router(tags=["crawls"])

COMMAND_S: Final = 10.0
"""How long a request waits for the broker to take its command."""

_VERBS: Final = {
    Verb.START: ("Start a crawl", "Publish its seeds and run, for the first time or again after it was finished."),
    Verb.PAUSE: (
        "Pause a crawl",
        "No further request starts; what is in flight is finished and reported, the rest handed back.",
    ),
    Verb.RESUME: ("Resume a crawl", "Go on where it was paused."),
    Verb.CANCEL: (
        "Cancel a crawl",
        "It is finished now. What was found stays, and what is queued waits until `start` takes the crawl up again.",
    ),
    Verb.RESET: (
        "Begin a crawl anew",
        "The same spec under a new id, from its seeds. What the old id found is removed.",
    ),
    Verb.RETRY_FAILED: ("Retry failed URLs", "Queue every failed URL again, with fresh attempts."),
}


def _route(verb: Verb) -> None:
    summary, description = _VERBS[verb]

    @router.post(
        f"/v1/crawls/{{name}}/{verb}",
        summary=summary,
        description=description,
        dependencies=[needs(Role.OPERATOR)],
        responses=problems(404, Kind.ILLEGAL_TRANSITION, 412),
        operation_id=f"{verb.replace('-', '_')}_crawl",
    )
    async def turn(
        name: Annotated[str, Path(pattern=NAME)], served: Served, by: By, expected: Expected, response: Response
    ) -> CrawlTurn:
        command = None
        if verb is Verb.RETRY_FAILED:
            # Before the state changes, so that a crawl is seldom found finished without it; where it is, the leader
            # lets it run again as soon as something is queued (Tending).
            command = await _retry(served, name, expected, by)
        before, made = await served.catalog.turn(name, verb, expected=expected, actor=by, now_ms=served.clock.unix_ms())
        served.plane.wake()
        if verb is Verb.RESET:
            command = await collect(served, before.crawl_id, by)
        body, tag = described(made, served)
        response.headers.update(etag(tag))
        return CrawlTurn(crawl=body, command=command)


for _verb in _VERBS:
    _route(_verb)


@router.get(
    "/v1/commands/{command_id}", tags=["commands"], summary="How far a command is", operation_id="get_command",
    dependencies=[needs(Role.VIEWER)], responses=problems(404),
)  # fmt: skip
async def get_command(command_id: Annotated[str, Path(max_length=64)], served: Served) -> Command:
    """Applied by how many of the partitions."""
    found = await served.catalog.command(command_id)
    if found is None:
        raise Missing(f"there is no command {command_id!r}")
    return command_body(found)


async def collect(served: Services, crawl_id: CrawlId, by: Actor) -> str:
    """Have a deleted crawl's rows removed; where the broker does not take that now, by the leader, later."""
    command_id = collection_of(crawl_id)
    try:
        return await commanded(served, command_id, crawl_id, CommandKind.DELETE, {}, by)
    except Transient as error:
        log.warning("collection.later", crawl=crawl_id, error=str(error))
        return command_id


async def commanded(
    served: Services,
    command_id: str,
    crawl_id: CrawlId,
    kind: CommandKind,
    args: dict[str, object],
    by: Actor,
    partition: Partition | None = None,
    apart: Mapping[Partition, Mapping[str, Any]] | None = None,
) -> str:
    """Publish a command to one partition, to all, or to each with its own arguments (see `publish_command`); its id.

    Transient when the broker did not take it in time.
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
                apart=apart,
            )
    except TimeoutError as error:
        raise Transient(f"the broker did not take command {command_id} in time: ask again") from error
    return command_id


async def _retry(served: Services, name: str, expected: frozenset[str] | None, by: Actor) -> str:
    crawl = await served.catalog.crawl(name)
    if expected is not None and crawl.tag not in expected:
        raise Stale(crawl.tag)
    after(Verb.RETRY_FAILED, Standing(crawl.state, crawl.resumes_as))
    command_id = f"retry-{uuid.uuid4().hex}"
    return await commanded(served, command_id, crawl.crawl_id, CommandKind.RETRY_FAILED, {}, by)
