"""Build the OpenAPI document: FastAPI's document of the routes, completed with what FastAPI lacks.

The crawl spec's schema comes from its msgspec types, so it has a single source. Every operation below /v1 declares that
it needs a key and answers errors as problem+json. The operation's row in the table of rights is in `x-orb-right`.
"""

from typing import Any, Final

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from api.http.deps import problem_content
from api.http.errors import MEDIA_TYPE, ProblemKind
from api.http.examples import problem_examples
from api.http.responses import HEADERS, declare_headers, open_answers
from api.schemas.crawls import EXAMPLE
from api.schemas.events import EventBody
from api.schemas.model import ANYTHING, Model, with_default
from api.schemas.problem import ProblemBody
from api.security.rights import Right, right_of
from shared.domain.crawl.spec import CrawlSpec
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
    {"name": "crawls", "description": "Crawls: declared, versioned, started and stopped."},
    {"name": "seeds", "description": "The URLs that crawls start from."},
    {"name": "progress", "description": "The numbers and the lag of crawls."},
    {"name": "events", "description": "Server-Sent Events that can be resumed."},
    {"name": "urls", "description": "URLs, their states, and the rules that apply to them."},
    {"name": "pages", "description": "Stored pages, their bodies, and exports."},
    {"name": "items", "description": "Items that rules extracted from pages."},
    {"name": "hosts", "description": "Hosts, and the policies that slow or block them."},
    {"name": "exclusions", "description": "Hosts, URL prefixes and address ranges that no crawl requests."},
    {"name": "schedules", "description": "When verbs are applied to crawls, and what became of each due time."},
    {"name": "cluster", "description": "Masters, workers, the leader and the owners of partitions."},
    {"name": "config", "description": "The hot configuration, which can be changed without a restart."},
    {"name": "commands", "description": "Commands to the owners of partitions."},
    {"name": "dead-letters", "description": "URLs and messages that were given up."},
    {"name": "api-keys", "description": "API keys and client certificates, their roles and bounds."},
    {"name": "audit", "description": "Changes that were made over the API."},
    {"name": "health", "description": "Probes and metrics."},
]
_PATH_DESCRIPTIONS: Final = {
    "name": "The crawl's name.",
    "revision": "The number of the revision.",
    "schedule": "The schedule's name.",
    "command_id": "The id of the command, from the answer that created it.",
}
"""Descriptions of path parameters that a route does not describe."""

_PARAMETER_EXAMPLES: Final[dict[str, Any]] = {
    "name": "docs",
    "schedule": "nightly",
    "revision": 2,
    "command_id": "6f1f0c5e8d3b4a7f9b1d2c3e4f5a6b7c",
    "prefix": "do",
    "label": ["team=search"],
    "limit": 50,
    "cursor": "ImRvY3Mi",
    "Idempotency-Key": "2030-01-01-docs",
    "If-Match": '"7-3"',
    "If-None-Match": '"7-3"',
    "Last-Event-Id": "1893456000000042",
    "after": 1893456000000042,
    "against": 1,
    "host": "example.org",
    "status": 200,
    "reason": "http_404",
    "url": "https://example.org/guide/",
    "from": "https://example.org/",
    "crawl": "docs",
    "page": "4099-8a5edab282632443219e051e4ade2d1d",
    "item": "259b8e05857a7c0c0d60c4d4d9d40bd7",
    "key_name": "terraform",
    "actor": "terraform",
    "action": "crawl.pause",
    "target": "docs",
    "since": "2030-01-01T00:00:00Z",
    "until": "2030-02-01T00:00:00Z",
}
"""Examples of parameters, by name, for routes that give none.

Swagger UI shows the example of a path parameter as the initial value of its input field.
"""

_EVERYWHERE: Final = (
    ProblemKind.MALFORMED,
    ProblemKind.UNAUTHENTICATED,
    ProblemKind.FORBIDDEN,
    ProblemKind.INVALID,
    ProblemKind.RATE_LIMITED,
    ProblemKind.UNAVAILABLE,
)
_OF_WRITES: Final = (ProblemKind.NO_LEADER,)
_OF_BODIES: Final = (ProblemKind.TOO_LARGE, ProblemKind.MEDIA)
_OF_REPEATABLE: Final = (ProblemKind.REUSED_KEY,)
_COMPONENTS: Final = "#/components/schemas/"


def document(app: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI document of the application. It is built once and cached."""
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
    components["examples"] = problem_examples()
    components["securitySchemes"] = {
        "key": {"type": "http", "scheme": "bearer", "description": "An API key."},
        "certificate": {"type": "mutualTLS", "description": "A client certificate that is declared as an identity."},
    }
    for path, item in made["paths"].items():
        for method, operation in item.items():
            _complete(operation, right_of(method.upper(), path))
    components["responses"] = _shared(made["paths"])
    components["headers"] = HEADERS
    resolved: dict[str, Any] = _resolved(made)
    open_answers(resolved)
    app.openapi_schema = resolved
    return resolved


def _complete(operation: dict[str, Any], right: Right) -> None:
    for parameter in operation.get("parameters", ()):
        _as_sent(parameter)
    responses = operation["responses"]
    responses.pop("422", None)
    if right.role is not None:
        operation["security"] = [{"key": []}, {"certificate": []}]
        operation["description"] = f"{operation['description']}\n\nNeeds the role `{right.role}`."
        operation["x-orb-right"] = {"resource": right.resource, "verb": right.verb, "role": str(right.role)}
        operation["x-orb-right"]["rate"] = str(right.route_class)
        for status, kinds in _common(operation, reads=right.method == "GET").items():
            response = {"description": kinds[0].value[2], "content": problem_content(*kinds)}
            responses.setdefault(str(status), response)
    operation["responses"] = dict(sorted(responses.items()))
    for status, response in responses.items():
        declare_headers(operation, status, response)


def _shared(paths: dict[str, Any]) -> dict[str, Any]:
    """Move error responses that several operations share to `components.responses`, and refer to them there.

    Change `paths` in place. Return the components, named by their kinds of problem.
    """
    shared: dict[str, Any] = {}
    for item in paths.values():
        for operation in item.values():
            for status, answer in operation["responses"].items():
                kinds = answer.get("content", {}).get(MEDIA_TYPE, {}).get("examples", {})
                name = "-or-".join(kinds)
                if kinds and shared.setdefault(name, answer) == answer:
                    operation["responses"][status] = {"$ref": f"#/components/responses/{name}"}
    return dict(sorted(shared.items()))


def _common(operation: dict[str, Any], *, reads: bool) -> dict[int, list[ProblemKind]]:
    """Return, by status, the kinds of problem that `operation` shares with many other operations.

    They follow from its method, its body and its headers. `reads`: True if the operation is a GET.
    """
    repeatable = any(parameter["name"] == "Idempotency-Key" for parameter in operation.get("parameters", ()))
    kinds = [
        *_EVERYWHERE,
        *(() if reads else _OF_WRITES),
        *(_OF_BODIES if "requestBody" in operation else ()),
        *(_OF_REPEATABLE if repeatable else ()),
    ]
    by_status: dict[int, list[ProblemKind]] = {}
    for kind in kinds:
        by_status.setdefault(kind.value[1], []).append(kind)
    return by_status


def _as_sent(parameter: dict[str, Any]) -> None:
    """Correct, in place, FastAPI's description of a request parameter, so that it shows what clients send.

    - The name of a header is written in title case.
    - null is removed from the types, because a parameter is never sent as null.
    - A missing description of a path parameter, and a missing example, are added from the tables of this module.
    - The description also states the default value, if there is one.
    """
    if parameter["in"] == "header":
        parameter["name"] = parameter["name"].title()
    name = parameter["name"]
    if parameter["in"] == "path" and name in _PATH_DESCRIPTIONS:
        parameter.setdefault("description", _PATH_DESCRIPTIONS[name])
    match parameter["schema"]:
        case {"anyOf": [{**given}, {"type": "null"}]}:
            rest = {name: value for name, value in parameter["schema"].items() if name != "anyOf"}
            parameter["schema"] = {**rest, **given}
    schema = parameter["schema"]
    if name in _PARAMETER_EXAMPLES and "examples" not in schema:
        example = "*" if schema.get("pattern") == ANYTHING else _PARAMETER_EXAMPLES[name]
        if parameter["in"] == "path":
            parameter.setdefault("example", example)
        else:
            schema["examples"] = [example]
    if "description" in parameter:
        parameter["description"] = with_default(parameter["description"], parameter["schema"])


def _spec_schemas() -> dict[str, Any]:
    """Return the schemas of the crawl spec and its parts.

    They allow a seed that is only a URL. They omit `name`, because the path of a request names the crawl.
    """
    _, schemas = msgspec.json.schema_components([CrawlSpec], ref_template=_COMPONENTS + "{name}")
    schemas["CrawlSpec"]["properties"].pop("name")
    schemas["CrawlSpec"]["examples"] = [EXAMPLE["spec"]]
    seeds = schemas["CrawlSpec"]["properties"]["seeds"]
    seeds["items"] = {"anyOf": [{"type": "string", "examples": ["https://example.org/"]}, seeds["items"]]}
    for schema in schemas.values():
        if schema.get("type") == "object":
            schema["additionalProperties"] = False
        for part in schema.get("properties", {}).values():
            part["description"] = with_default(part["description"], part)
    return schemas


def _own(model: type[Model]) -> dict[str, Any]:
    schema = model.model_json_schema(ref_template=_COMPONENTS + "{model}")
    parts: dict[str, Any] = schema.pop("$defs", {})
    return {**parts, model.__name__: schema}


def _resolved(part: Any) -> Any:
    """Return a copy of this part of the document, in which two notations are replaced by ones that clients understand.

    - `{"x-orb-schema": "Seed"}` becomes a reference to the schema Seed: `{"$ref": "#/components/schemas/Seed"}`.
    - `{"patternProperties": {"^[a-z]+$": S}}` becomes
      `{"propertyNames": {"pattern": "^[a-z]+$"}, "additionalProperties": S}`.
    """
    # `x-orb-schema` is a private notation of api.schemas. A `title` beside it is dropped.
    # `patternProperties` would allow other keys, and client generators would not recognize a mapping.
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
