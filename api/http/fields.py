"""Describe wrong fields of a request: the path of each, a sentence about the error, and a hint.

The messages of FastAPI and pydantic name their own types and patterns, which mean nothing to a client.
"""

import re
from collections.abc import Iterator, Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Union, get_args, get_origin

import msgspec
from pydantic import BaseModel

from api.schemas.items import ITEM_ID
from api.schemas.model import ANYTHING, MEMBER_ID, MOMENT, ONE_LINE, RULE_NAME, VISIBLE
from api.schemas.pages import PAGE_ID, SEGMENT_NAME, TIME_DIGITS
from api.schemas.schedules import CLOCK
from shared.domain.crawl.spec import LABEL, LABEL_WORDS
from shared.domain.crawl.spec_parse import SpecError, shown
from shared.domain.suggestions import did_you_mean, label_meant

FORMS: Final[Mapping[str, str]] = {
    LABEL: LABEL_WORDS,
    ONE_LINE: "one line without control characters",
    ANYTHING: "*",
    VISIBLE: "printable ASCII characters without spaces",
    RULE_NAME: "lower-case letters, digits and hyphens",
    MEMBER_ID: "letters, digits and inner dots, hyphens and underscores, at most 64",
    PAGE_ID: "a page's id, as lists of pages show it",
    SEGMENT_NAME: "the name of a WARC file, which ends with .warc.gz",
    TIME_DIGITS: "up to 14 digits of a time, such as 20300101",
    CLOCK: "a time of day as HH:MM",
    ITEM_ID: "an item's id, as lists of items show it",
}
"""The patterns of fields, in words."""

_BY_TYPE: Final[Mapping[str, str]] = {
    "string_type": "text",
    "string_unicode": "text without lone surrogates",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_parsing_size": "a smaller number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "dict_type": "a mapping of fields",
    "model_type": "a mapping of fields",
    "model_attributes_type": "a mapping of fields",
    "list_type": "a list",
    "datetime_type": MOMENT,
    "datetime_parsing": MOMENT,
    "datetime_object_invalid": MOMENT,
    "datetime_from_date_parsing": MOMENT,
}

_OF_KEY: Final = "[key]"
"""If a key of a mapping is wrong, pydantic appends this to the path of the error: `("labels", "team", "[key]")`."""

_BOUNDS: Final[Mapping[str, tuple[str, str]]] = {
    "greater_than_equal": ("ge", "at least"),
    "greater_than": ("gt", "more than"),
    "less_than_equal": ("le", "at most"),
    "less_than": ("lt", "less than"),
}


class FieldError(msgspec.Struct, frozen=True, omit_defaults=True):
    """One error in a request: the path of the field, what is wrong, and a hint (api.schemas.problem.FieldProblem)."""

    path: str
    message: str
    hint: str = ""


def field_errors(found: Mapping[str, Any], body: Any = None, *, suggest: bool = True) -> Iterator[FieldError]:
    """Yield the wrong fields of a request for one error that pydantic found.

    - `found`: the error, an entry of pydantic's `errors()`.
    - `body`: the type of the request body, to look up the known fields.
    - `suggest`: True to suggest a known field with a similar name for an unknown field.
    """
    place = found["loc"]
    path = ""
    for part in place[1 if place[:1] == ("body",) else 0 :]:
        if part != _OF_KEY:
            path = f"{path}[{part}]" if isinstance(part, int) else joined(path, str(part))
    wrong = found.get("ctx", {}).get("error")
    if isinstance(wrong, SpecError):
        yield from (FieldError(joined(path, each.path), each.message, each.hint) for each in wrong.problems)
    elif found["type"] == "extra_forbidden":
        known = _fields_at(body, place[1:-1]) if suggest else []
        hint = did_you_mean(str(place[-1]), known) if known else "remove it"
        yield FieldError(path, "unknown field", hint)
    else:
        yield _field_error(found, path)


def joined(path: str, name: str) -> str:
    """Return the path of the field `name` in the object at `path`, such as `spec.seeds`.

    One of the two may be empty.
    """
    return f"{path}.{name}" if path and name else path or name


def _field_error(found: Mapping[str, Any], path: str) -> FieldError:
    kind, given, rule = found["type"], found.get("input"), found.get("ctx", {})
    match kind:
        case "missing":
            return FieldError(path, "is required")
        case "string_pattern_mismatch":
            form = FORMS.get(rule["pattern"], f"the form {rule['pattern']}")
            hint = label_meant(str(given)) if rule["pattern"] == LABEL else ""
            return FieldError(path, f"expected {form}, got {shown(given)}", hint)
        case "enum" | "literal_error":
            choices = re.findall(r"'([^']*)'", rule["expected"])
            return FieldError(
                path, f"expected one of {', '.join(choices)}, got {shown(given)}", _choice_meant(given, choices)
            )
        case "string_too_short" | "too_short":
            return FieldError(path, f"is shorter than {rule['min_length']}" if given else "is empty")
        case "string_too_long":
            return FieldError(path, f"has more than {rule['max_length']} characters")
        case "too_long":
            return FieldError(path, f"has more than {rule['max_length']} entries")
        case "value_error":
            return FieldError(path, str(rule["error"]))
        case _ if kind in _BOUNDS:
            name, words = _BOUNDS[kind]
            return FieldError(path, f"expected {words} {rule[name]:g}, got {shown(given)}")
        case _ if kind in _BY_TYPE:
            return FieldError(path, f"expected {_BY_TYPE[kind]}, got {shown(given)}")
        case _:
            return FieldError(path, str(found["msg"]))


def _choice_meant(given: Any, choices: list[str]) -> str:
    hint = did_you_mean(str(given), choices)
    return hint if hint.startswith("did") else ""


def _fields_at(body: Any, place: tuple[Any, ...]) -> list[str]:
    """Return the names of the fields that an object inside a request body may have, to suggest one of the names.

    - `body`: the type of the request body, such as a pydantic model class.
    - `place`: the way from the body to the object. `("seeds", 0)` is the first entry of the list in the field `seeds`.

    Return an empty list if the type of the object is no pydantic model.
    """
    for part in place:
        inner = _inner(body)
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            field = inner.model_fields.get(str(part))
            body = None if field is None else field.annotation
        else:
            body = get_args(inner)[-1] if get_args(inner) else None
    inner = _inner(body)
    return list(inner.model_fields) if isinstance(inner, type) and issubclass(inner, BaseModel) else []


def _inner(annotation: Any) -> Any:
    """Return the type in a type annotation, without Annotated and without `| None`."""
    while get_origin(annotation) in (Annotated, Union, UnionType):
        parts = get_args(annotation)
        annotation = parts[0] if get_origin(annotation) is Annotated else next(p for p in parts if p is not NoneType)
    return annotation
