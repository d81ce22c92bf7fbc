"""The response body of every error (RFC 9457)."""

from pydantic import Field

from api.schemas.model import Model, field
from api.schemas.seeds import RejectedSeed


class FieldProblem(Model):
    """A problem of one field of a request: what is wrong, and how to correct it."""

    path: str = field("The field, as `spec.scope.include[2]`. Empty if the whole request is meant.", "spec.seeds")
    message: str = field("What is wrong with the field.", "is required")
    hint: str = Field(
        "",
        description="How to correct it. Empty if there is no hint.",
        examples=["give at least one URL to start from"],
    )


class ProblemBody(Model):
    """The body of an error response.

    Programs use `type`, `status` and `errors`. `title`, `detail` and `hint` are for people.
    """

    type: str = field("The stable name of the kind of problem.", "urn:orbweaver:problem:not-found")
    title: str = field("The kind of problem in words.", "Not found")
    status: int = field("The HTTP status of the answer.", 404)
    detail: str = field("What is wrong with this request.", "there is no crawl 'docs'")
    instance: str = field("The path of the request.", "/v1/crawls/docs")
    request_id: str = field("The id of this request in the logs.", "0d3c5f1f4f1b4d6c8a52")
    hint: str = Field(
        "",
        description="How to correct it. Empty if there is no hint.",
        examples=["`orb ctl get crawls` lists the crawls"],
    )
    errors: list[FieldProblem] = Field([], description="All fields of the request that are wrong.")
    allowed_verbs: list[str] = Field(
        [], description="The verbs that the crawl's state allows, if a verb was refused.", examples=[["start"]]
    )
    accepted: int | None = Field(
        None, description="After an interrupted upload: the number of seeds that are stored durably.", examples=[250000]
    )
    duplicate: int | None = Field(
        None,
        description="After an interrupted upload: the number of durable lines that repeat a recent one.",
        examples=[10],
    )
    rejected: int | None = Field(
        None,
        description="After an interrupted upload: the number of durable lines that are not valid seeds.",
        examples=[2],
    )
    durable_lines: int | None = Field(
        None,
        description="After an interrupted upload: the number of lines that need not be sent again.",
        examples=[250012],
    )
    first_rejected: list[RejectedSeed] = Field(
        [], description="After an interrupted upload: the first rejected lines of those that need not be sent again."
    )
