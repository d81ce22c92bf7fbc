"""/v1/config: the hot configuration, which can be changed without a restart."""

from typing import Annotated

from fastapi import Path, Response

from api.http.deps import CONDITIONAL, UNCHANGED, By, Expected, Page, Served, Services, etag, problems
from api.http.errors import ApiProblem, ProblemKind
from api.http.fields import FieldError
from api.http.routing import Router
from api.schemas.config import ConfigRevision, HotConfiguration, config_of, revision_body
from api.schemas.model import Listing
from shared.domain.ops.watermarks import OF_STORAGE
from shared.wire.events import EventKind
from shared.wire.keys import SETTINGS

router = Router(prefix="/v1/config", tags=["config"])


@router.get("", summary="Get the hot configuration", dependencies=[CONDITIONAL], responses=UNCHANGED)
async def get_config(served: Served, response: Response) -> ConfigRevision:
    """Return the newest revision of the hot configuration.

    Settings that it leaves out have the values that each member was started with. /v1/cluster shows which members run
    it.
    """
    stored = await served.desired.config()
    response.headers.update(etag(stored.tag))
    return revision_body(stored)


@router.put("", summary="Replace the hot configuration", responses=problems(412))
async def put_config(
    wanted: HotConfiguration, served: Served, by: By, expected: Expected, response: Response
) -> ConfigRevision:
    """Replace the whole hot configuration.

    Settings that are left out have the values that each member was started with. Members follow within about two
    seconds, without a restart; /v1/cluster lists the others as `outdated_members`. If nothing differs, nothing changes.
    """
    _judge(wanted, served)
    stored, changed = await served.desired.put_config(
        config_of(wanted), expected=expected, actor=by, now_ms=served.clock.unix_ms()
    )
    if changed:
        served.plane.wake()
        data = {"revision": stored.revision, "by": stored.changed_by}
        served.telling.publish(EventKind.CONFIG, SETTINGS, "updated", data=data)
    response.headers.update(etag(stored.tag))
    return revision_body(stored)


@router.get("/revisions", summary="List revisions of the hot configuration")
async def list_config_revisions(served: Served, page: Page, response: Response) -> Listing[ConfigRevision]:
    """List the revisions of the hot configuration, newest first."""
    before = page.place(int, 2**31 - 1, greatest=2**31 - 1)
    rows = await served.desired.config_revisions(before=before, max_count=page.max_count)
    place = rows[-1].revision if rows and rows[-1].revision > 1 else None
    return Listing(items=[revision_body(stored) for stored in rows], next=page.next(place, response))


@router.get(
    "/revisions/{revision}", summary="Get a revision of the hot configuration",
    dependencies=[CONDITIONAL], responses={**problems(404), **UNCHANGED},
)  # fmt: skip
async def get_config_revision(
    revision: Annotated[int, Path(ge=1, le=2**31 - 1)], served: Served, response: Response
) -> ConfigRevision:
    """Return a revision of the hot configuration. To restore it, PUT its `config`."""
    stored = await served.desired.config_revision(revision)
    response.headers.update(etag(stored.tag))
    return revision_body(stored)


def _judge(wanted: HotConfiguration, served: Services) -> None:
    """Raise a problem for values that cannot work.

    `grant_s` must not exceed the start-up value: a new owner waits that long, and no longer, for earlier grants. The
    low watermark must not be above the high one.
    """
    default = OF_STORAGE
    high, low = wanted.storage.high_watermark_ratio or default.high, wanted.storage.low_watermark_ratio or default.low
    if low > high:
        wrong = FieldError(
            "storage.low_watermark_ratio",
            f"is {low:g}, above storage.high_watermark_ratio, {high:g}",
            "set both, the low one below the high one",
        )
        raise ApiProblem(ProblemKind.INVALID, "the configuration cannot be used", errors=[wrong])
    grant_s = wanted.master.grant_s
    if grant_s is not None and grant_s > served.longest_grant_s:
        wrong = FieldError(
            "master.grant_s",
            f"is above the masters' start-up value, {served.longest_grant_s:g}",
            "start the masters with a longer --grant-s to be able to turn it that far",
        )
        raise ApiProblem(ProblemKind.INVALID, "the configuration cannot be used", errors=[wrong])
