"""The request and response bodies of seed uploads and deletions."""

from pydantic import Field

from api.crawls.seed_upload import UploadCounts
from api.schemas.model import Model, RequestModel, field


class RejectedSeed(Model):
    """A line of a seed upload that was rejected, and why."""

    line: int = field("The number of the line, from 1.", 12)
    url: str = field("The text of the line, cut if it is long.", "ftp://example.org/")
    reason: str = field("Why it was rejected.", "its scheme is not http or https")


class SeedReport(Model):
    """The result of a seed upload: how many of its lines were accepted, repeated or rejected."""

    lines: int = field("The number of lines that were read, including blank ones.", 1000)
    accepted: int = field("The number of seeds that are stored durably. Each is fetched, or excluded by a rule.", 997)
    duplicate: int = field(
        "The number of seeds that repeat a recent one of the same upload. Seeds that the crawl knows "
        "already count as accepted.",
        2,
    )
    rejected: int = field("The number of lines that are not valid seeds.", 1)
    durable_lines: int = field("The number of lines that need not be sent again.", 1000)
    first_rejected: list[RejectedSeed] = field("The first rejected lines.")


class SeedDeletion(RequestModel):
    """The seeds to delete: the listed ones, or (`all`) every seed that is not in the spec."""

    seeds: list[str] = Field(
        default_factory=list,
        max_length=1_000,
        description="The URLs of the seeds to delete. They are put into canonical form.",
        examples=[["https://example.org/"]],
    )
    all: bool = Field(False, description="True: delete every seed that is not in the spec, and leave out `seeds`.")


class SeedDeletionAccepted(Model):
    """The response to a deletion of seeds: the command that deletes them, and the revision of the crawl's spec."""

    command: str = field("The id of the command: see /v1/commands/{id}.", "6f1f0c5e8d3b4a7f9b1d2c3e4f5a6b7c")
    revision: int = field("The number of the crawl's revision. It is a new one if the spec named a deleted seed.", 2)


def report_body(counts: UploadCounts) -> SeedReport:
    """Return the counts of an upload's lines as the API shows them."""
    return SeedReport.of(counts, first_rejected=[RejectedSeed.of(each) for each in counts.first_rejected])
