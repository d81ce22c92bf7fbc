"""The request and response bodies of exclusions."""

from datetime import datetime
from typing import Annotated, Any

import msgspec
from pydantic import Field, StringConstraints

from api.schemas.model import ONE_LINE, Model, Moment, RequestModel, field, moment_of, ms_of, when
from shared.domain.crawl.exclusions import MAX_TARGET_CHARS, TargetKind
from shared.domain.ops.exclusions import ExclusionTerms, StoredExclusion

Line = Annotated[str, StringConstraints(max_length=500, pattern=ONE_LINE)]


class ExclusionChange(RequestModel):
    """The fields of an exclusion that can be changed: all fields except the target."""

    reason: Annotated[Line, StringConstraints(min_length=1)] = field(
        "Why nothing of it is crawled.", "the owner asked by mail"
    )
    requested_by: Line = Field("", description="Who asked for it.", examples=["webmaster@example.org"])
    until: Moment | None = Field(
        None,
        description="When the exclusion ends. It needs a time zone. Default: it never ends by itself.",
        examples=["2030-01-01T00:00:00Z"],
    )
    withdraw: bool = Field(
        False,
        description="True: also withdraw what is stored of it from pages, exports, the index and items. That is not "
        "undone when the exclusion ends. The archive files keep the bytes.",
    )

    def terms(self) -> ExclusionTerms:
        """Return these fields as the database stores them, with `until` as Unix milliseconds."""
        return ExclusionTerms(
            self.reason, self.requested_by, None if self.until is None else max(0, ms_of(self.until)), self.withdraw
        )


class ExclusionInput(ExclusionChange):
    """The body of a request that creates an exclusion."""

    target: Annotated[str, StringConstraints(min_length=1, max_length=MAX_TARGET_CHARS, pattern=ONE_LINE)] = Field(
        description="A host (`example.org`, with its subdomains), a URL prefix (`https://example.org/private/`), an "
        "address (`192.0.2.7`) or an address range (`192.0.2.0/24`).",
        examples=["example.org"],
    )


class Exclusion(Model):
    """A host, URL prefix or address range that no crawl requests."""

    id: int = field("The exclusion's number.", 7)
    target: str = field("What is excluded, in canonical form.", "example.org")
    kind: TargetKind = field("The form of the target.")
    reason: str = field("Why nothing of it is crawled.", "the owner asked by mail")
    requested_by: str = field("Who asked for it.", "webmaster@example.org")
    until: datetime | None = field("When the exclusion ends. Null: it never ends by itself.", "2030-01-01T00:00:00Z")
    withdraw: bool = field("True if what is stored of it is withdrawn, too.")
    active: bool = field("False after `until`.")
    created_at: datetime = field("When it was created.", "2029-01-01T08:00:00Z")
    created_by: str = field("The name and id of the API key that created it.", "first-admin (76f4e1d9b2a0c3f5)")
    command: str = field(
        "The id of the command that applies it to what is queued and stored: see /v1/commands/{id}. Once "
        "the command is applied, no worker sends a request that the exclusion covers.",
        "exclude-7-12",
    )


def terms_body(terms: ExclusionTerms) -> dict[str, Any]:
    """Return the fields of an exclusion that can be changed, as JSON values."""
    shown: dict[str, Any] = msgspec.to_builtins(
        {
            "reason": terms.reason,
            "requested_by": terms.requested_by,
            "until": when(terms.until_ms),
            "withdraw": terms.withdraw,
        }
    )
    return shown


def exclusion_body(stored: StoredExclusion, now_ms: int) -> Exclusion:
    """Return an exclusion as the API shows it. `now_ms` (Unix ms) decides whether it is active."""
    terms = stored.terms
    return Exclusion(
        id=stored.exclusion_id,
        target=stored.target,
        kind=stored.kind,
        reason=terms.reason,
        requested_by=terms.requested_by,
        until=when(terms.until_ms),
        withdraw=terms.withdraw,
        active=not stored.ended(now_ms),
        created_at=moment_of(stored.created_at_ms),
        created_by=stored.created_by,
        command=stored.command_id,
    )
