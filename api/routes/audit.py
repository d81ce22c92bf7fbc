"""/v1/audit: who did what to what, and when."""

from datetime import datetime
from typing import Annotated, Final

from fastapi import Query, Response

from api.deps import Page, Served, needs
from api.errors import Kind, Problem
from api.fields import FieldError
from api.routing import Router
from api.schemas.audit import AuditEntry, audit_body
from api.schemas.model import Listing, Moment, ms_of
from shared.domain.access import Role
from shared.domain.audit import AuditFilter

router = Router(prefix="/v1/audit", tags=["audit"], dependencies=[needs(Role.ADMIN)])

_NEWEST: Final = 2**63 - 1


@router.get("", summary="List what was done", operation_id="list_audit")
async def list_audit(
    served: Served,
    page: Page,
    response: Response,
    actor: Annotated[
        str | None, Query(min_length=1, max_length=128, description="Only by the key of this name or id.")
    ] = None,
    action: Annotated[
        str | None,
        Query(min_length=1, max_length=32, description="Only this, as `crawl.pause`; `crawl.` is all that begins so."),
    ] = None,
    target: Annotated[
        str | None,
        Query(min_length=1, max_length=300, description="Only to this: a crawl's name, a key's id, what was changed."),
    ] = None,
    since: Annotated[Moment | None, Query(description="Only from this time on.")] = None,
    until: Annotated[Moment | None, Query(description="Only before this time.")] = None,
) -> Listing[AuditEntry]:
    """Newest first. A page looks at a bounded number of acts, so one may be short or empty before the end: follow
    `next`."""
    which = AuditFilter(actor, action, target, _ms("since", since), _ms("until", until))
    found, place = await served.overview.audit(which, before=page.place(int, _NEWEST), most=page.most)
    return Listing(items=[audit_body(line) for line in found], next=page.next(place, response))


def _ms(name: str, moment: datetime | None) -> int | None:
    if moment is None:
        return None
    if moment.tzinfo is None:
        raise Problem(Kind.INVALID, "the time is not valid", errors=[FieldError(name, "has no time zone")])
    return ms_of(moment)
