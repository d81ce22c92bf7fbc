"""Complete the responses of the OpenAPI document: declare their headers, and allow additional fields."""

from collections.abc import Iterable, Iterator, Set
from copy import deepcopy
from typing import Any, Final

INPUT: Final = "Input"
"""The suffix that marks the copy of a schema for requests, as in `XInput`.

If both requests and responses use a schema `X` that forbids additional fields, requests get a copy of `X` with the name
`XInput`. The copy forbids additional fields. `X` itself is changed to allow additional fields, for responses.
"""

_TEXT: Final = {"type": "string"}

HEADERS: Final[dict[str, Any]] = {
    "X-Request-Id": {"description": "Names the request in logs and in the audit log.", "schema": _TEXT},
    "ETag": {"description": "The version that is shown: send it as If-Match or If-None-Match.", "schema": _TEXT},
    "Location": {"description": "Where the new resource is.", "schema": {"type": "string", "format": "uri-reference"}},
    "Link": {"description": 'The next page, as `<...>; rel="next"`; absent on the last.', "schema": _TEXT},
    "Retry-After": {"description": "Seconds to wait before another try.", "schema": {"type": "integer", "minimum": 0}},
    "RateLimit": {
        "description": 'What is left for this key, as `"read";r=9999;t=1`: `r` requests now, all of them in `t` s.',
        "schema": _TEXT,
    },
    "RateLimit-Policy": {
        "description": 'The limit of this key, as `"read";q=10000;w=10`: `q` requests in `w` s.',
        "schema": _TEXT,
    },
    "WWW-Authenticate": {"description": "How to authenticate: `Bearer`.", "schema": _TEXT},
    "Content-Disposition": {"description": "The name of the file.", "schema": _TEXT},
    "Content-Security-Policy": {"description": "A browser runs nothing of the body.", "schema": _TEXT},
    "Cross-Origin-Resource-Policy": {"description": "`same-origin`: no other site's page shows it.", "schema": _TEXT},
    "X-Accel-Buffering": {"description": "`no`: a proxy passes events on as they come.", "schema": _TEXT},
}

_BY_STATUS: Final = {
    "304": ("ETag",),
    "401": ("WWW-Authenticate",),
    "412": ("ETag",),
    "429": ("Retry-After",),
    "503": ("Retry-After",),
}
_TAGGED: Final = frozenset(
    {
        "put_crawl", "patch_crawl", "create_crawl",
        "start_crawl", "refresh_crawl", "pause_crawl", "resume_crawl", "cancel_crawl", "reset_crawl",
        "retry_failed_crawl",
        "put_config", "put_config_value", "delete_config_value", "put_key", "create_key", "revoke_key",
        "create_exclusion", "put_exclusion", "put_host_policy", "put_seed_set",
        "create_schedule", "put_schedule", "pause_schedule", "resume_schedule",
    }
)  # fmt: skip
"""Operation ids of the writes whose responses have an ETag.

The set contains no reads. A read has an ETag if its operation declares a response 304.
"""

_LOCATED: Final = frozenset(
    {
        ("create_crawl", "201"),
        ("put_crawl", "201"),
        ("create_key", "201"),
        ("put_key", "201"),
        ("create_exclusion", "201"),
        ("put_host_policy", "201"),
        ("put_seed_set", "201"),
        ("create_schedule", "201"),
        ("put_schedule", "201"),
    }
)
_BODIES: Final = frozenset({"get_page_body", "lookup_page_body", "get_version_body"})
_FILES: Final = frozenset({"export_crawl"}) | _BODIES
_STREAMS: Final = frozenset({"follow_events", "follow_crawl", "follow_changes"})


def declare_headers(operation: dict[str, Any], status: str, response: dict[str, Any]) -> None:
    """Declare the headers of a response in the OpenAPI document. Change `response` in place.

    `operation`: a method of a path in the document. `response`: its response with the HTTP status `status`, such as
    "200".
    """
    limited = ("RateLimit", "RateLimit-Policy") if "x-orb-right" in operation else ()
    names = {"X-Request-Id", *limited, *_BY_STATUS.get(status, ()), *_of_success(operation, status, response)}
    declared = {name: {"$ref": f"#/components/headers/{name}"} for name in sorted(names)}
    response["headers"] = declared | response.get("headers", {})


def _of_success(operation: dict[str, Any], status: str, response: dict[str, Any]) -> Iterator[str]:
    if not status.startswith("2"):
        return
    name = operation["operationId"]
    if name in _TAGGED or "304" in operation["responses"]:
        yield "ETag"
    if (name, status) in _LOCATED:
        yield "Location"
    if name in _FILES:
        yield "Content-Disposition"
    if name in _BODIES:
        yield from ("Content-Security-Policy", "Cross-Origin-Resource-Policy")
    if name in _STREAMS:
        yield "X-Accel-Buffering"
    if any(parameter["name"] == "cursor" for parameter in operation.get("parameters", ())):
        yield "Link"


def open_answers(document: dict[str, Any]) -> None:
    """Allow additional properties in every response schema of the document, so that a new field breaks no client.

    The document is changed in place. Schemas of requests still forbid additional properties, because the server refuses
    unknown fields. If requests and responses use the same schema, requests get a copy with `Input` appended to its
    name.
    """
    schemas = document["components"]["schemas"]
    operations = [operation for item in document["paths"].values() for operation in item.values()]
    answers = [document["components"]["responses"], *(operation["responses"] for operation in operations)]
    requests = [operation["requestBody"] for operation in operations if "requestBody" in operation]
    answered, asked = _reached(schemas, answers), _reached(schemas, requests)
    both = {name for name in answered & asked if _is_closed(schemas, name)}
    for part in (*requests, *(schemas[name] for name in asked - answered)):
        _refer_to_input(part, both)
    inputs = {}
    for name in both:
        variant = deepcopy(schemas[name])
        _refer_to_input(variant, both)
        inputs[name + INPUT] = {**variant, "title": name + INPUT}
    if taken := inputs.keys() & schemas.keys():
        raise ValueError(f"there are two schemas of each of these names: {', '.join(sorted(taken))}")
    for name in answered:
        _open(schemas[name])
    document["components"]["schemas"] = dict(sorted((schemas | inputs).items()))


def _reached(schemas: dict[str, Any], parts: Iterable[Any]) -> set[str]:
    """Return the names of all schemas that `parts` of the document refer to, directly or through other schemas."""
    reached: set[str] = set()
    waiting = [name for part in parts for name in _named(part)]
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting += _named(schemas[name])
    return reached


def _is_closed(schemas: dict[str, Any], name: str) -> bool:
    """Return True if the schema `name`, or a schema that it refers to, forbids additional properties."""
    return any(_refuses_more(schemas[each]) for each in {name, *_reached(schemas, [schemas[name]])})


def _refuses_more(part: Any) -> bool:
    match part:
        case dict():
            return part.get("additionalProperties") is False or any(_refuses_more(each) for each in part.values())
        case list():
            return any(_refuses_more(each) for each in part)
    return False


def _refer_to_input(part: Any, names: Set[str]) -> None:
    """Replace, in `part`, each reference to a schema in `names` by a reference to the schema's copy for requests.

    The document is changed in place.
    """
    match part:
        case {"$ref": str(place)} if place.rpartition("/")[2] in names:
            part["$ref"] = place + INPUT
    match part:
        case dict():
            for value in part.values():
                _refer_to_input(value, names)
        case list():
            for value in part:
                _refer_to_input(value, names)


def _named(part: Any) -> Iterator[str]:
    """Yield the name of each schema that this part of the document refers to directly."""
    if isinstance(part, dict):
        for key, value in part.items():
            if key == "$ref" and isinstance(value, str) and value.startswith("#/components/schemas/"):
                yield value.rpartition("/")[2]
            else:
                yield from _named(value)
    elif isinstance(part, list):
        for each in part:
            yield from _named(each)


def _open(schema: Any) -> None:
    if isinstance(schema, dict):
        if schema.get("additionalProperties") is False:
            del schema["additionalProperties"]
        for value in schema.values():
            _open(value)
    elif isinstance(schema, list):
        for each in schema:
            _open(each)
