"""What the OpenAPI document says of answers in general: their headers, and that they may gain fields."""

from collections.abc import Iterator
from typing import Any, Final

_TEXT: Final = {"type": "string"}

HEADERS: Final[dict[str, Any]] = {
    "X-Request-Id": {"description": "Names the request in logs and in the audit log.", "schema": _TEXT},
    "ETag": {"description": "The version that is shown: send it as If-Match or If-None-Match.", "schema": _TEXT},
    "Location": {"description": "Where the new resource is.", "schema": {"type": "string", "format": "uri-reference"}},
    "Link": {"description": 'The next page, as `<...>; rel="next"`; absent on the last.', "schema": _TEXT},
    "Retry-After": {"description": "Seconds to wait before another try.", "schema": {"type": "integer", "minimum": 0}},
    "WWW-Authenticate": {"description": "How to authenticate: `Bearer`.", "schema": _TEXT},
    "Content-Disposition": {"description": "The name of the file.", "schema": _TEXT},
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
        "get_crawl", "put_crawl", "patch_crawl", "create_crawl", "get_revision",
        "start_crawl", "pause_crawl", "resume_crawl", "cancel_crawl", "reset_crawl", "retry_failed_crawl",
        "get_config", "put_config", "get_config_revision", "get_key", "create_key", "revoke_key",
        "get_dead_letter", "get_page", "lookup_page", "get_page_body", "lookup_page_body", "get_item",
    }
)  # fmt: skip
_LOCATED: Final = frozenset({("create_crawl", "201"), ("put_crawl", "201"), ("create_key", "201")})
_FILES: Final = frozenset({"export_crawl"})


def declare_headers(operation: dict[str, Any], status: str, response: dict[str, Any]) -> None:
    """Add the headers that this answer of an operation carries."""
    names = {"X-Request-Id", *_BY_STATUS.get(status, ()), *_of_success(operation, status, response)}
    declared = {name: {"$ref": f"#/components/headers/{name}"} for name in sorted(names)}
    response["headers"] = declared | response.get("headers", {})


def _of_success(operation: dict[str, Any], status: str, response: dict[str, Any]) -> Iterator[str]:
    if not status.startswith("2"):
        return
    name = operation["operationId"]
    if name in _TAGGED:
        yield "ETag"
    if (name, status) in _LOCATED:
        yield "Location"
    if name in _FILES:
        yield "Content-Disposition"
    if any(parameter["name"] == "cursor" for parameter in operation.get("parameters", ())):
        yield "Link"


def open_answers(document: dict[str, Any]) -> None:
    """Let every schema that an answer is made of have further properties, so that a new field breaks no client. What
    is only sent to us keeps its closed schemas."""
    schemas = document["components"]["schemas"]
    answers = [document["components"]["responses"]]
    answers += [operation["responses"] for item in document["paths"].values() for operation in item.values()]
    reached: set[str] = set()
    waiting = [name for part in answers for name in _named(part)]
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting += _named(schemas[name])
    for name in reached:
        _open(schemas[name])


def _named(part: Any) -> Iterator[str]:
    """The schemas that a part of the document refers to."""
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
