"""The body of every error (RFC 9457)."""

from pydantic import Field

from api.schemas.model import Model


class FieldProblem(Model):
    """One thing wrong with a request."""

    path: str = Field(
        description="The field, as `spec.scope.include[2]`; empty for the whole.", examples=["spec.seeds"]
    )
    message: str = Field(examples=["is required"])
    hint: str = Field("", examples=["give at least one URL to start from"])


class ProblemBody(Model):
    """What went wrong, for programs (`type`, `status`, `errors`) and for people (`title`, `detail`, `hint`)."""

    type: str = Field(description="Stable name of the kind of problem.", examples=["urn:orbweaver:problem:not-found"])
    title: str = Field(examples=["Not found"])
    status: int = Field(examples=[404])
    detail: str = Field(examples=["there is no crawl 'docs'"])
    instance: str = Field(description="The path that was asked for.", examples=["/v1/crawls/docs"])
    request_id: str = Field(description="Names this request in the logs.", examples=["0d3c5f1f4f1b4d6c8a52"])
    hint: str = Field("", description="What to do about it.")
    errors: list[FieldProblem] = Field([], description="All that is wrong with the request's fields.")
    legal: list[str] = Field([], description="The verbs that are legal now, where one was not.")
    accepted: int | None = Field(None, description="Of an upload that broke off: what is durable already.")
    durable_lines: int | None = Field(
        None, description="Of an upload that broke off: its lines that need not come again."
    )
