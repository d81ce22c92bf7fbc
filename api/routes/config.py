"""/v1/config: what may be turned while everything runs."""

from typing import Annotated

from fastapi import Path, Response

from api.deps import CONDITIONAL, UNCHANGED, By, Expected, Page, Served, Services, etag, needs, problems
from api.errors import Kind, Problem
from api.fields import FieldError
from api.routing import Router
from api.schemas.config import ConfigRevision, HotConfiguration, config_of, revision_body
from api.schemas.model import Listing
from shared.domain.access import Role
from shared.domain.watermarks import OF_STORAGE
from shared.wire.events import EventKind
from shared.wire.keys import SETTINGS

router = Router(prefix="/v1/config", tags=["config"])


@router.get(
    "", summary="The hot configuration", operation_id="get_config", dependencies=[needs(Role.VIEWER), CONDITIONAL],
    responses=UNCHANGED,
)  # fmt: skip
async def get_config(served: Served, response: Response) -> ConfigRevision:
    """The newest revision. What it leaves out is as each member was started. Who runs it already: see /v1/cluster."""
    stored = await served.desired.config()
    response.headers.update(etag(stored.tag))
    return revision_body(stored)


@router.put(
    "", summary="Replace the hot configuration", operation_id="put_config", dependencies=[needs(Role.OPERATOR)],
    responses=problems(412),
)  # fmt: skip
async def put_config(
    wanted: HotConfiguration, served: Served, by: By, expected: Expected, response: Response
) -> ConfigRevision:
    """The whole of it: what is left out goes back to what each member was started with. Members follow within about two
    seconds, without a restart; /v1/cluster names those that are `behind`. If it is so already, nothing changes."""
    _judge(wanted, served)
    stored, changed = await served.desired.put_config(
        config_of(wanted), expected=expected, actor=by, now_ms=served.clock.unix_ms()
    )
    if changed:
        served.plane.wake()
        data = {"revision": stored.revision, "by": stored.changed_by}
        served.telling.tell(EventKind.CONFIG, SETTINGS, "updated", data=data)
    response.headers.update(etag(stored.tag))
    return revision_body(stored)


@router.get(
    "/revisions", summary="List revisions of the hot configuration", operation_id="list_config_revisions",
    dependencies=[needs(Role.VIEWER)],
)  # fmt: skip
async def list_config_revisions(served: Served, page: Page, response: Response) -> Listing[ConfigRevision]:
    """Newest first."""
    before = page.place(int, 2**31 - 1, greatest=2**31 - 1)
    found = await served.desired.config_revisions(before=before, most=page.most)
    place = found[-1].revision if found and found[-1].revision > 1 else None
    return Listing(items=[revision_body(stored) for stored in found], next=page.next(place, response))


@router.get(
    "/revisions/{revision}", summary="Get a revision of the hot configuration", operation_id="get_config_revision",
    dependencies=[needs(Role.VIEWER), CONDITIONAL], responses={**problems(404), **UNCHANGED},
)  # fmt: skip
async def get_config_revision(
    revision: Annotated[int, Path(ge=1, le=2**31 - 1)], served: Served, response: Response
) -> ConfigRevision:
    """As it was written then: put its `config` to go back to it."""
    stored = await served.desired.config_revision(revision)
    response.headers.update(etag(stored.tag))
    return revision_body(stored)


def _judge(wanted: HotConfiguration, served: Services) -> None:
    """A new owner waits for grants of before as long as it was started to give them, and no longer. And there is room
    again only where it is not full."""
    default = OF_STORAGE
    high, low = wanted.storage.high or default.high, wanted.storage.low or default.low
    if low > high:
        wrong = FieldError("storage.low", f"is {low:g}, above storage.high, {high:g}", "say both, the lower one below")
        raise Problem(Kind.INVALID, "the configuration cannot be used", errors=[wrong])
    grant_s = wanted.master.grant_s
    if grant_s is not None and grant_s > served.longest_grant_s:
        wrong = FieldError(
            "master.grant_s",
            f"is above the masters' start-up value, {served.longest_grant_s:g}",
            "start the masters with a longer --grant-s to be able to turn it that far",
        )
        raise Problem(Kind.INVALID, "the configuration cannot be used", errors=[wrong])
