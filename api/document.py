"""The OpenAPI document: what the framework makes of the routes, and what it cannot know.

The crawl spec's schema comes from its msgspec types, so that there is one truth about it; every operation is said to
need a key, and to answer errors as problem+json.
"""

import copy
from typing import Any, Final

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from api.deps import PROBLEM_CONTENT
from api.schemas.problem import ProblemBody
from shared.domain.crawl import CrawlSpec
from shared.domain.software import NAME, VERSION

DESCRIPTION: Final = """\
Declare crawls, watch them, and ask why. Every error is `application/problem+json` (RFC 9457) with a stable `type`; \
lists are paged by `cursor` (also in the `Link` header); unknown fields are refused; `If-Match` guards against lost \
updates; `Idempotency-Key` makes creates safe to repeat. Any master answers; what only the leader may do is passed \
on to it.

Send `Authorization: Bearer <API key>`. The first key is shown when the cluster is first started.
"""
TAGS: Final = [
    {"name": "crawls", "description": "What to crawl, and how: declared, versioned, started and stopped."},
    {"name": "seeds", "description": "URLs to start from, a few or many millions."},
    {"name": "progress", "description": "Numbers of a crawl: maintained counters, never a scan."},
    {"name": "urls", "description": "What is known of URLs, and why they are in the state they are in."},
    {"name": "hosts", "description": "What is known of hosts, and how they are spared."},
    {"name": "cluster", "description": "Masters, workers, the leader and who owns what."},
    {"name": "commands", "description": "Verbs on their way to the owners of partitions."},
    {"name": "dead-letters", "description": "What was given up, with the evidence."},
    {"name": "api-keys", "description": "Who may do what."},
    {"name": "health", "description": "For those who start and stop masters."},
]
_EVERYWHERE: Final = {
    "400": "The request cannot be read",
    "401": "Authentication is needed",
    "403": "The key's role does not allow this",
    "422": "The request is not valid",
    "503": "Something this needs is away",
}
_COMPONENTS: Final = "#/components/schemas/"


def document(app: FastAPI) -> dict[str, Any]:
    """The document, made once and kept."""
    if app.openapi_schema is not None:
        return app.openapi_schema
    made = get_openapi(
        title=NAME,
        version=VERSION,
        summary="The control plane of a distributed web crawler",
        description=DESCRIPTION,
        routes=app.routes,
        tags=TAGS,
        license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
    )
    components = made.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    for leftover in ("HTTPValidationError", "ValidationError"):
        schemas.pop(leftover, None)
    schemas |= _spec_schemas() | _own(ProblemBody)
    components["schemas"] = dict(sorted(schemas.items()))
    components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer", "description": "An API key."}}
    for path, item in made["paths"].items():
        for operation in item.values():
            _complete(operation, guarded=path.startswith("/v1/"))
    resolved: dict[str, Any] = _resolved(made)
    app.openapi_schema = resolved
    return resolved


def _complete(operation: dict[str, Any], *, guarded: bool) -> None:
    responses = operation["responses"]
    responses.pop("422", None)
    if guarded:
        operation["security"] = [{"key": []}]
        for status, said in _EVERYWHERE.items():
            responses.setdefault(status, {"description": said, "content": copy.deepcopy(PROBLEM_CONTENT)})
    operation["responses"] = dict(sorted(responses.items()))


def _spec_schemas() -> dict[str, Any]:
    """The schemas of the spec and its parts; a seed may be its URL alone, and the name stands beside the spec."""
    _, schemas = msgspec.json.schema_components([CrawlSpec], ref_template=_COMPONENTS + "{name}")
    schemas["CrawlSpec"]["properties"].pop("name")
    seeds = schemas["CrawlSpec"]["properties"]["seeds"]
    seeds["items"] = {"anyOf": [{"type": "string", "examples": ["https://example.org/"]}, seeds["items"]]}
    for schema in schemas.values():
        schema["additionalProperties"] = False
    return schemas


def _own(model: type[ProblemBody]) -> dict[str, Any]:
    schema = model.model_json_schema(ref_template=_COMPONENTS + "{model}")
    parts: dict[str, Any] = schema.pop("$defs")
    return {**parts, model.__name__: schema}


def _resolved(part: Any) -> Any:
    """Places where a schema of ours was named take its reference."""
    if isinstance(part, dict):
        if "x-orb-schema" in part:
            rest = {name: _resolved(value) for name, value in part.items() if name not in ("x-orb-schema", "title")}
            return {"$ref": _COMPONENTS + part["x-orb-schema"], **rest}
        return {name: _resolved(value) for name, value in part.items()}
    if isinstance(part, list):
        return [_resolved(each) for each in part]
    return part
