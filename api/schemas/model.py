"""The base classes of all request and response bodies: unknown fields are refused, times are ISO 8601 in UTC."""

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from typing import Annotated, Any, Final, Generic, Self, TypeVar, dataclass_transform

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, GetJsonSchemaHandler, Strict
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

T = TypeVar("T")

ONE_LINE: Final = r"^[^\x00-\x1f\x7f]*$"
"""The pattern of a text without control characters: they must not reach a terminal or a log, and no database stores
NUL."""

ANYTHING: Final = r"^\*$"
VISIBLE: Final = r"^[!-~]+$"
RULE_NAME: Final = r"^[a-z0-9-]+$"
MEMBER_ID: Final = r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,62}[A-Za-z0-9])?$"

SEED_LABELS: Final = "The labels of the seed from which the page was found. Empty if it has none."
SEED_SOURCE: Final = "The `source` of the seed from which the page was found. Null if it has none."

MOMENT: Final = "a time as 2030-01-01T00:00:00Z"

_MOMENT: Final = re.compile(r"\d{4}-\d{2}-\d{2}[Tt ]\d{2}:\d{2}.*", re.ASCII)


def field(description: str, *examples: Any) -> Any:
    """Return a required field with a description, and with examples where the type does not say enough."""
    return Field(description=description, examples=list(examples) or None)


@dataclass_transform(kw_only_default=True, field_specifiers=(Field, field))
class Model(BaseModel):
    """A request body or response body, or a part of one."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @classmethod
    def of(cls, value: object, **values: Any) -> Self:
        """Return the body that shows `value`: its attributes of the fields' names, and `values` for other fields.

        A field `x_at` or `at` shows the attribute `x_at_ms` or `at_ms`, which is in Unix milliseconds.
        """
        for name, attribute in _attributes(cls):
            if name not in values:
                shown = getattr(value, attribute)
                values[name] = shown if name is attribute else when(shown)
        return cls(**values)


@cache
def _attributes(body: type[Model]) -> list[tuple[str, str]]:
    """Return the body's fields, and the attributes that they show."""
    return [(name, f"{name}_ms" if name == "at" or name.endswith("_at") else name) for name in body.model_fields]


class RequestModel(Model):
    """A request body. Its values are not coerced to another type: "yes" is not true, true is not a number."""

    model_config = ConfigDict(strict=True)

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Return the schema, with the default of each property in its description."""
        schema = handler(core_schema)
        for part in handler.resolve_ref_schema(schema).get("properties", {}).values():
            if "description" in part:
                part["description"] = with_default(part["description"], part)
        return schema


def with_default(description: str, schema: Mapping[str, Any]) -> str:
    """Return the description with the schema's default, so that it cannot differ from the code's.

    It stays as it is if it names a default already, or if the default is an object, whose fields name their own.
    """
    if "default" not in schema or "Default:" in description or isinstance(schema["default"], dict):
        return description
    return f"{description} Default: `{json.dumps(schema['default'])}`."


def _written_out(given: Any) -> Any:
    """Refuse numbers, which pydantic would read as seconds since 1970."""
    if not isinstance(given, str) or _MOMENT.fullmatch(given) is None:
        raise ValueError(f"expected {MOMENT}")
    return given


def as_whole(given: Any) -> Any:
    """Return a float without a fraction as an int, and anything else as it is."""
    return int(given) if isinstance(given, float) and given.is_integer() else given


WHOLE: Final = BeforeValidator(as_whole)
"""Validator of a whole number in a request, after its bounds: in JSON, 2.0 is a whole number."""

Moment = Annotated[datetime, Strict(False), BeforeValidator(_written_out)]
"""A time in a request."""


class Listing(Model, Generic[T]):
    """One page of a list. The `Link` header has the address of the next."""

    items: list[T] = Field(description="The entries of this page.")
    next: str | None = Field(
        None, description="The `cursor` of the next page. Null on the last page.", examples=["ImRvY3Mi"]
    )

    @classmethod
    def model_parametrized_name(cls, params: tuple[Any, ...]) -> str:
        """Return the schema's name: `CrawlList` for a list of CrawlSummary."""
        return f"{params[0].__name__.removesuffix('Summary').removesuffix('View')}List"


def when(ms: int | None) -> datetime | None:
    """Return the time of Unix milliseconds in UTC; None for None."""
    return None if ms is None else datetime.fromtimestamp(ms / 1000, UTC)


def moment_of(ms: int) -> datetime:
    """Return the time of Unix milliseconds in UTC."""
    return datetime.fromtimestamp(ms / 1000, UTC)


_EARLIEST_MS: Final = -62_135_596_800_000
_LATEST_MS: Final = 253_402_300_799_000


def ms_of(moment: datetime) -> int:
    """Return the Unix milliseconds of a time with a time zone, within the years 1 to 9999 in UTC.

    A time zone may lead out of these years. Such a time could be stored, but not shown.
    """
    return max(_EARLIEST_MS, min(int(moment.timestamp() * 1000), _LATEST_MS))
