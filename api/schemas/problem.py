"""The response body of every error (RFC 9457)."""

from pydantic import Field

from api.schemas.model import Model


class FieldProblem(Model):
    """What is wrong with one field of a request."""

    path: str = Field(
        description="The field, as `spec.scope.include[2]`. Empty if the whole request is meant.",
        examples=["spec.seeds"],
    )
    message: str = Field(description="What is wrong with the field.", examples=["is required"])
    hint: str = Field(
        "",
        description="How to correct it. Empty if there is no hint.",
        examples=["give at least one URL to start from"],
    )


class ProblemBody(Model):
    """An error, for programs (`type`, `status`, `errors`) and for people (`title`, `detail`, `hint`)."""

    type: str = Field(
        description="The stable name of the kind of problem.", examples=["urn:orbweaver:problem:not-found"]
    )
    title: str = Field(description="The kind of problem in words.", examples=["Not found"])
    status: int = Field(description="The HTTP status of the answer.", examples=[404])
    detail: str = Field(description="What is wrong with this request.", examples=["there is no crawl 'docs'"])
    instance: str = Field(description="The path of the request.", examples=["/v1/crawls/docs"])
    request_id: str = Field(description="The id of this request in the logs.", examples=["0d3c5f1f4f1b4d6c8a52"])
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
    durable_lines: int | None = Field(
        None,
        description="After an interrupted upload: the number of lines that need not be sent again.",
        examples=[250012],
    )
