"""/v1/audit: the audit log, which lists the changes that were made over the API."""

from datetime import datetime
from typing import Annotated, Final

from fastapi import Query, Response

from api.http.deps import Page, Served
from api.http.errors import ApiProblem, ProblemKind
from api.http.fields import FieldError
from api.http.routing import Router
from api.schemas.audit import AuditEntry, audit_body
from api.schemas.model import Listing, Moment, ms_of
from shared.domain.crawl.exclusions import MAX_TARGET_CHARS
from shared.domain.ops.audit import AuditFilter

router = Router(prefix="/v1/audit", tags=["audit"])

_NEWEST: Final = 2**63 - 1


@router.get("", summary="List audit entries")
async def list_audit(
    served: Served,
    page: Page,
    response: Response,
    actor: Annotated[
        str | None, Query(min_length=1, max_length=128, description="Only entries of the key with this name or id.")
    ] = None,
    action: Annotated[
        str | None,
        Query(
            min_length=1,
            max_length=32,
            description="Only entries with this action. `crawl.` is every action with that prefix.",
        ),
    ] = None,
    target: Annotated[
        str | None,
        Query(
            min_length=1,
            max_length=MAX_TARGET_CHARS,
            description="Only entries with this target: a crawl's name, a key, host, member or exclusion.",
        ),
    ] = None,
    since: Annotated[Moment | None, Query(description="Only entries from this time on.")] = None,
    until: Annotated[Moment | None, Query(description="Only entries before this time.")] = None,
) -> Listing[AuditEntry]:
    """List the entries of the audit log, newest first.

    A page examines a bounded number of entries, so it may be short or empty although more entries follow. Continue
    until `next` is null.
    """
    which = AuditFilter(actor, action, target, _ms("since", since), _ms("until", until))
    rows, place = await served.overview.audit(which, before=page.place(int, _NEWEST), max_count=page.max_count)
    return Listing(items=[audit_body(line) for line in rows], next=page.next(place, response))


def _ms(name: str, moment: datetime | None) -> int | None:
    if moment is None:
        return None
    if moment.tzinfo is None:
        raise ApiProblem(ProblemKind.INVALID, "the time is not valid", errors=[FieldError(name, "has no time zone")])
    return ms_of(moment)
