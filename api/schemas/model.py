"""The base classes of all request and response bodies: unknown fields are refused, times are ISO 8601 in UTC."""

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from typing import Annotated, Any, Final, Generic, Self, TypeVar, dataclass_transform

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, GetJsonSchemaHandler, Strict
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

T = TypeVar("T")

# Control characters could control a terminal, and PostgreSQL cannot store NUL.
ONE_LINE: Final = r"^[^\x00-\x1f\x7f]*$"
"""The pattern of a text without control characters such as line breaks."""

ANYTHING: Final = r"^\*$"
VISIBLE: Final = r"^[!-~]+$"
RULE_NAME: Final = r"^[a-z0-9-]+$"
MEMBER_ID: Final = r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,62}[A-Za-z0-9])?$"

SEED_LABELS: Final = "The labels of the seed from which the page was found. Empty if it has none."
SEED_SOURCE: Final = "The `source` of the seed from which the page was found. Null if it has none."

MOMENT: Final = "a time as 2030-01-01T00:00:00Z"

_MOMENT: Final = re.compile(r"\d{4}-\d{2}-\d{2}[Tt ]\d{2}:\d{2}.*", re.ASCII)


def field(description: str, *examples: Any) -> Any:
    """Return a required pydantic field with a description and, where the type does not say enough, examples."""
    return Field(description=description, examples=list(examples) or None)


@dataclass_transform(kw_only_default=True, field_specifiers=(Field, field))
class Model(BaseModel):
    """The base class of every request body and response body, and of their parts."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @classmethod
    def of(cls, value: object, **values: Any) -> Self:
        """Return a body whose fields are copied from the attributes of `value` with the same names.

        A field with the name `at`, or with a name that ends in `_at`, is a time. It is converted from an attribute in
        Unix milliseconds, whose name ends in `_ms`: `created_at` from `created_at_ms`.

        `values`: the values of fields that are not copied.
        """
        for name, attribute in _attributes(cls):
            if name not in values:
                shown = getattr(value, attribute)
                values[name] = shown if name is attribute else when(shown)
        return cls(**values)


@cache
def _attributes(body: type[Model]) -> list[tuple[str, str]]:
    """Return each field of a body, with the attribute from which `Model.of` copies it."""
    return [(name, f"{name}_ms" if name == "at" or name.endswith("_at") else name) for name in body.model_fields]


class RequestModel(Model):
    """The base class of request bodies. A value must have the type of its field: "yes" is not accepted for true."""

    model_config = ConfigDict(strict=True)

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Return the JSON schema, with the default of each property appended to its description."""
        schema = handler(core_schema)
        for part in handler.resolve_ref_schema(schema).get("properties", {}).values():
            if "description" in part:
                part["description"] = with_default(part["description"], part)
        return schema


def with_default(description: str, schema: Mapping[str, Any]) -> str:
    """Return the description of a property with the default from its JSON `schema` appended.

    Return `description` unchanged if `schema` has no default, if `description` names a default already, or if the
    default is a JSON object.
    """
    if "default" not in schema or "Default:" in description or isinstance(schema["default"], dict):
        return description
    return f"{description} Default: `{json.dumps(schema['default'])}`."


def _written_out(given: Any) -> Any:
    """Return `given` unchanged if it is a text in the form of a time. Otherwise raise ValueError."""
    if not isinstance(given, str) or _MOMENT.fullmatch(given) is None:
        raise ValueError(f"expected {MOMENT}")
    return given


def as_whole(given: Any) -> Any:
    """Convert a float without a fraction to an int. Return any other value unchanged."""
    return int(given) if isinstance(given, float) and given.is_integer() else given


WHOLE: Final = BeforeValidator(as_whole)
"""Validator that accepts 2.0 for the whole number 2. It must be last in `Annotated`: then it runs first, before the
minimum and maximum are checked."""

Moment = Annotated[datetime, Strict(False), BeforeValidator(_written_out)]
"""A time in a request, as ISO 8601 text. It may lack a time zone."""


def _with_zone(moment: datetime) -> datetime:
    if moment.tzinfo is None:
        raise ValueError("needs a time zone, as Z in 2030-06-01T00:00:00Z")
    return moment


ZonedMoment = Annotated[Moment, AfterValidator(_with_zone)]
"""A time in a request, as ISO 8601 text with a time zone."""


class Listing(Model, Generic[T]):
    """One page of a list. The `Link` header has the address of the next page."""

    items: list[T] = Field(description="The entries of this page.")
    next: str | None = Field(
        None, description="The `cursor` of the next page. Null on the last page.", examples=["ImRvY3Mi"]
    )

    @classmethod
    def model_parametrized_name(cls, params: tuple[Any, ...]) -> str:
        """Return the name of a list's schema in the OpenAPI document, such as `CrawlList` for Listing[CrawlSummary]."""
        return f"{params[0].__name__.removesuffix('Summary').removesuffix('View')}List"


def when(ms: int | None) -> datetime | None:
    """Convert Unix milliseconds to a datetime in UTC. Return None for None."""
    return None if ms is None else datetime.fromtimestamp(ms / 1000, UTC)


def moment_of(ms: int) -> datetime:
    """Convert Unix milliseconds to a datetime in UTC."""
    return datetime.fromtimestamp(ms / 1000, UTC)


_EARLIEST_MS: Final = -62_135_596_800_000
_LATEST_MS: Final = 253_402_300_799_000


def ms_of(moment: datetime) -> int:
    """Convert a datetime with a time zone to Unix milliseconds.

    The result is limited to the years 1 to 9999 in UTC, so that it can be converted back to a datetime in UTC.
    """
    return max(_EARLIEST_MS, min(int(moment.timestamp() * 1000), _LATEST_MS))
