"""What became of uploaded seeds."""

from pydantic import Field

from api.control.uploading import UploadCounts
from api.schemas.model import Model, Wanted


class RejectedSeed(Model):
    """A line that was not taken."""

    line: int = Field(description="Counts from 1.")
    url: str
    reason: str


class SeedReport(Model):
    """Counts of an upload's lines."""

    lines: int = Field(description="All that were read, blank ones too.")
    accepted: int = Field(description="Durable: they are fetched, or excluded by a rule, but never lost.")
    duplicate: int = Field(
        description="Repeats close by in the same upload. What the crawl knows already is accepted, and is counted as "
        "`known` in its stats once applied."
    )
    rejected: int
    durable_lines: int = Field(description="Lines up to this one need not be sent again.")
    first_rejected: list[RejectedSeed]


class SeedDeletion(Wanted):
    """Which seeds to take back: those named, or all that the spec does not name."""

    seeds: list[str] = Field(
        default_factory=list, max_length=1_000, description="Any spelling of them.", examples=[["https://a.test/"]]
    )
    all: bool = Field(False, description="Every seed that is not in the spec; leave out `seeds`.")


class SeedsAsked(Model):
    """The command that carries a deletion out, and the crawl's revision now: a new one if the spec named a seed."""

    command: str = Field(description="See /v1/commands/{id}.")
    revision: int


def report_body(counts: UploadCounts) -> SeedReport:
    """The counts as they are shown."""
    return SeedReport(
        lines=counts.lines,
        accepted=counts.accepted,
        duplicate=counts.duplicate,
        rejected=counts.rejected,
        durable_lines=counts.durable_lines,
        first_rejected=[
            RejectedSeed(line=each.line, url=each.url, reason=each.reason) for each in counts.first_rejected
        ],
    )
