"""What became of uploaded seeds."""

from pydantic import Field

from api.control.uploading import UploadCounts
from api.schemas.model import Model


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
