"""The OpenAPI document: what the framework makes of the routes, and what it cannot know.

The crawl spec's schema comes from its msgspec types, so that there is one truth about it; every operation is said to
need a key, and to answer errors as problem+json.
"""

from typing import Any, Final

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from api.answers import HEADERS, declare_headers, open_answers
from api.deps import problem_content
from api.errors import MEDIA_TYPE, Kind
from api.examples import SCHEMAS, problem_examples
from api.schemas.events import EventBody
from api.schemas.model import Model
from api.schemas.problem import ProblemBody
from shared.domain.crawl import CrawlSpec
from shared.domain.software import NAME, VERSION

DESCRIPTION: Final = """\
Declare crawls, watch them, and ask why. Every error is `application/problem+json` (RFC 9457) with a stable `type`; \
lists are paged by `cursor` (also in the `Link` header); unknown fields are refused; `If-Match` guards against lost \
updates; `Idempotency-Key` makes creates safe to repeat. Any master answers; what only the leader may do is passed \
on to it. Whatever has GET answers HEAD with the same headers and no body. A method that a path does not have is \
answered 405; the header `Allow` lists those that it has.

Send `Authorization: Bearer <API key>`. The first key is shown when the cluster is first started; `orb key \
create` makes another on the database itself.
"""
TAGS: Final = [
    {"name": "crawls", "description": "What to crawl, and how: declared, versioned, started and stopped."},
    {"name": "seeds", "description": "URLs to start from, a few or many millions."},
    {"name": "progress", "description": "Numbers of a crawl: maintained counters, never a scan."},
    {"name": "events", "description": "What happens, as it happens: Server-Sent Events that resume where you were."},
    {"name": "urls", "description": "What is known of URLs, and why they are in the state they are in."},
    {"name": "pages", "description": "What was stored: records of fetches, bodies from the archive, exports."},
    {"name": "items", "description": "What rules took out of pages."},
    {"name": "hosts", "description": "What is known of hosts, and how they are spared."},
    {"name": "cluster", "description": "Masters, workers, the leader and who owns what."},
    {"name": "config", "description": "What may be turned while everything runs."},
    {"name": "commands", "description": "Verbs on their way to the owners of partitions."},
    {"name": "dead-letters", "description": "What was given up, with the evidence."},
    {"name": "api-keys", "description": "Who may do what."},
    {"name": "audit", "description": "Who did what, and when."},
    {"name": "health", "description": "For those who start and stop masters."},
]
_PLACES: Final[dict[str, tuple[str, Any]]] = {
    "name": ("The crawl's name.", "docs"),
    "revision": ("The revision's number.", 1),
    "command_id": ("The command's id, as the verb that made it told it.", None),
}
"""What paths are made of, where a route says no more; the example is what Swagger UI fills in."""

_EVERYWHERE: Final = (Kind.MALFORMED, Kind.UNAUTHENTICATED, Kind.FORBIDDEN, Kind.INVALID, Kind.UNAVAILABLE)
_OF_WRITES: Final = (Kind.NO_LEADER,)
_OF_BODIES: Final = (Kind.TOO_LARGE, Kind.MEDIA)
_OF_REPEATABLE: Final = (Kind.REUSED_KEY,)
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
    schemas |= _spec_schemas() | _own(ProblemBody) | _own(EventBody)
    components["schemas"] = dict(sorted(schemas.items()))
    for name, example in SCHEMAS.items():
        schemas[name]["examples"] = [example]
    components["examples"] = problem_examples()
    components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer", "description": "An API key."}}
    for path, item in made["paths"].items():
        for method, operation in item.items():
            _complete(operation, guarded=path.startswith("/v1/"), reads=method == "get")
    components["responses"] = _shared(made["paths"])
    components["headers"] = HEADERS
    resolved: dict[str, Any] = _resolved(made)
    open_answers(resolved)
    app.openapi_schema = resolved
    return resolved


def _complete(operation: dict[str, Any], *, guarded: bool, reads: bool) -> None:
    for parameter in operation.get("parameters", ()):
        _as_sent(parameter)
    responses = operation["responses"]
    responses.pop("422", None)
    if guarded:
        operation["security"] = [{"key": []}]
        for status, kinds in _common(operation, reads=reads).items():
            said = {"description": kinds[0].value[2], "content": problem_content(*kinds)}
            responses.setdefault(str(status), said)
    operation["responses"] = dict(sorted(responses.items()))
    for status, response in responses.items():
        declare_headers(operation, status, response)


def _shared(paths: dict[str, Any]) -> dict[str, Any]:
    """The answers that say the same of several operations, taken out of those and named for their problems."""
    shared: dict[str, Any] = {}
    for item in paths.values():
        for operation in item.values():
            for status, answer in operation["responses"].items():
                kinds = answer.get("content", {}).get(MEDIA_TYPE, {}).get("examples", {})
                name = "-or-".join(kinds)
                if kinds and shared.setdefault(name, answer) == answer:
                    operation["responses"][status] = {"$ref": f"#/components/responses/{name}"}
    return dict(sorted(shared.items()))


def _common(operation: dict[str, Any], *, reads: bool) -> dict[int, list[Kind]]:
    """The kinds of problem that an operation may answer whatever it is about, by their status."""
    repeatable = any(parameter["name"] == "Idempotency-Key" for parameter in operation.get("parameters", ()))
    kinds = [
        *_EVERYWHERE,
        *(() if reads else _OF_WRITES),
        *(_OF_BODIES if "requestBody" in operation else ()),
        *(_OF_REPEATABLE if repeatable else ()),
    ]
    by_status: dict[int, list[Kind]] = {}
    for kind in kinds:
        by_status.setdefault(kind.value[1], []).append(kind)
    return by_status


def _as_sent(parameter: dict[str, Any]) -> None:
    """One that may be left out is not null when it is there; headers have the case in which people know them."""
    if parameter["in"] == "header":
        parameter["name"] = parameter["name"].title()
    if parameter["in"] == "path" and parameter["name"] in _PLACES:
        description, example = _PLACES[parameter["name"]]
        parameter.setdefault("description", description)
        if example is not None:
            parameter["example"] = example
    match parameter["schema"]:
        case {"anyOf": [{**given}, {"type": "null"}]}:
            rest = {name: value for name, value in parameter["schema"].items() if name != "anyOf"}
            parameter["schema"] = {**rest, **given}


def _spec_schemas() -> dict[str, Any]:
    """The schemas of the spec and its parts; a seed may be its URL alone, and the name stands beside the spec."""
    _, schemas = msgspec.json.schema_components([CrawlSpec], ref_template=_COMPONENTS + "{name}")
    schemas["CrawlSpec"]["properties"].pop("name")
    seeds = schemas["CrawlSpec"]["properties"]["seeds"]
    seeds["items"] = {"anyOf": [{"type": "string", "examples": ["https://example.org/"]}, seeds["items"]]}
    for schema in schemas.values():
        if schema.get("type") == "object":
            schema["additionalProperties"] = False
    return schemas


def _own(model: type[Model]) -> dict[str, Any]:
    schema = model.model_json_schema(ref_template=_COMPONENTS + "{model}")
    parts: dict[str, Any] = schema.pop("$defs", {})
    return {**parts, model.__name__: schema}


def _resolved(part: Any) -> Any:
    """Places where a schema of ours was named take its reference. Mappings whose keys have a pattern are said to be
    such: as properties of a pattern, others would be welcome, and generators of clients see no mapping."""
    if isinstance(part, dict):
        match part.get("patternProperties"):
            case dict() as patterns if len(patterns) == 1:
                ((pattern, value),) = patterns.items()
                rest = {name: each for name, each in part.items() if name != "patternProperties"}
                return _resolved({**rest, "propertyNames": {"pattern": pattern}, "additionalProperties": value})
        if "x-orb-schema" in part:
            rest = {name: _resolved(value) for name, value in part.items() if name not in ("x-orb-schema", "title")}
            return {"$ref": _COMPONENTS + part["x-orb-schema"], **rest}
        return {name: _resolved(value) for name, value in part.items()}
    if isinstance(part, list):
        return [_resolved(each) for each in part]
    return part
