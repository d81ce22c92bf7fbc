"""The OpenAPI document for people: every property and parameter has a plain description and an example.

No example is needed where the schema lists the values (boolean, enum, const) or refers to a schema of its own, alone or
in a list or map: the parts of that have theirs.
"""

import asyncio
import json
import re
from collections.abc import Iterator
from typing import Any, Final

import httpx
import jsonschema_rs
import msgspec
import pytest

from shared.domain.crawl.spec_parse import parse_spec
from shared.domain.ops.access import Role
from shared.domain.ops.config import MasterTuning
from shared.settings import ClusterWorkerSettings
from tests.support.api.api_server import Served, served
from tests.support.api.rest_api import openapi_document
from tests.support.engines.nats_server import BrokerServer

DOCUMENT: Final[dict[str, Any]] = openapi_document()
SCHEMAS: Final[dict[str, Any]] = DOCUMENT["components"]["schemas"]
BANNED: Final = re.compile(
    r"\b(whoever|whom|nobody|somebody|anybody|told|tells?|said|says?|heard|hears?|knows it|begin anew)\b", re.IGNORECASE
)
UNITS: Final = {"_ms": "milliseconds", "_s": "second", "bytes": "bytes", "_days": "days"}
DEFAULT: Final = re.compile(r"Default: `(.*?)`\.")
LONGEST: Final = 25
"""Words of a sentence, at most."""
URL: Final = "https://example.org/"


def properties() -> Iterator[tuple[str, dict[str, Any]]]:
    for name, schema in SCHEMAS.items():
        for field, part in schema.get("properties", {}).items():
            yield f"{name}.{field}", part


def parameters() -> Iterator[tuple[str, dict[str, Any]]]:
    for path, item in DOCUMENT["paths"].items():
        for method, operation in item.items():
            for each in operation.get("parameters", ()):
                shown = {"description": each.get("description", ""), **each["schema"]}
                if "example" in each:
                    shown["examples"] = [each["example"]]
                yield f"{method.upper()} {path} {each['in']}.{each['name']}", {
                    **shown, "description": each.get("description", "")
                }  # fmt: skip


def everything() -> list[tuple[str, dict[str, Any]]]:
    return [*properties(), *parameters()]


def lists_its_values(part: dict[str, Any]) -> bool:
    """Return True if an example would add nothing."""
    if part.get("type") == "boolean" or part.keys() & {"enum", "const", "$ref"}:
        return True
    inner = [part[name] for name in ("items", "additionalProperties") if isinstance(part.get(name), dict)]
    inner += [each for name in ("anyOf", "allOf", "oneOf") for each in part.get(name, ()) if each != {"type": "null"}]
    return bool(inner) and any(lists_its_values(each) for each in inner)


def defaults_of_members() -> dict[str, Any]:
    """Return the defaults of what the hot configuration leaves out, by schema and field."""
    tuning = MasterTuning()
    worker = {field.name: field.default for field in msgspec.structs.fields(ClusterWorkerSettings)}
    found = {f"MasterValues.{name}": value for name, value in msgspec.to_builtins(tuning).items()}
    found |= {f"RetentionValues.{name}": value for name, value in msgspec.structs.asdict(tuning.retention).items()}
    found |= {f"WorkerValues.{name}": worker[name] for name in ("max_visits", "report_s")}
    storage = ("high_watermark_ratio", tuning.storage.high), ("low_watermark_ratio", tuning.storage.low)
    found |= {f"StorageValues.{name}": value for name, value in storage}
    found["StorageValues.headroom_bytes"] = tuning.storage.headroom
    return {**found, "HotConfiguration.log_level": tuning.log_level}


@pytest.mark.parametrize(("place", "part"), everything(), ids=lambda each: each if isinstance(each, str) else "")
def test_property_has_a_plain_description_and_an_example(place: str, part: dict[str, Any]) -> None:
    text = part.get("description", "")
    assert re.match(r"[A-Z`*]|robots\.txt", text), f"{place}: {text!r} does not begin like a sentence"
    assert text.endswith("."), f"{place}: {text!r} does not end like a sentence"
    assert BANNED.search(text) is None, f"{place}: {text!r}"
    sentences = re.split(r"(?<=[.:])\s", text)
    assert [each for each in sentences if len(each.split()) > LONGEST] == [], place
    assert part.get("examples") or lists_its_values(part), f"{place} has no example"


@pytest.mark.parametrize(("place", "part"), everything(), ids=lambda each: each if isinstance(each, str) else "")
def test_description_agrees_with_unit_default_and_example(place: str, part: dict[str, Any]) -> None:
    name, text = place.rpartition(".")[2], part["description"]
    unit = next((unit for suffix, unit in UNITS.items() if name.endswith(suffix)), None)
    numeric = "number" in json.dumps(part) or "integer" in json.dumps(part)
    if unit is not None and numeric:
        assert unit in text.lower(), f"{place}: {text!r} does not name the unit {unit}"
    stated = DEFAULT.search(text)
    schema = re.sub(r"Input\.", ".", place)
    if schema in defaults_of_members():
        assert stated is not None, f"{place} does not state its default"
        value = defaults_of_members()[schema]
        assert stated[1] == (value if isinstance(value, str) else json.dumps(value)), place
    elif stated is not None:
        assert json.loads(stated[1]) == json.loads(json.dumps(part["default"])), place
    judge = jsonschema_rs.Draft202012Validator({**part, "components": DOCUMENT["components"]})
    assert [str(error) for each in part.get("examples", ()) for error in judge.iter_errors(each)] == []


def spec_parts() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield a spec for every example of the spec's schemas."""
    for name in ("scope", "politeness", "budget", "fetch", "extract", "retry", "egress", "output", "robots"):
        yield from ((f"{name}.{field}", {name: {field: value}}) for field, value in examples_of(name.title()))
    yield from ((f"scope.traps.{field}", {"scope": {"traps": {field: value}}}) for field, value in examples_of("Traps"))
    yield from ((f"seeds.{field}", {"seeds": [{"url": URL, field: value}]}) for field, value in examples_of("Seed"))
    yield from ((field, {field: value}) for field, value in examples_of("CrawlSpec"))
    basis: dict[str, Any] = {"name": "product", "fields": {"sku": {"css": "h1"}}}
    for field, value in examples_of("ItemRule"):
        yield f"items.{field}", {"extract": {"items": [{**basis, field: value}]}}
    for field, value in examples_of("ItemField"):
        ways = {"css", "meta", "path"}
        way = {} if field in ways else {"css": "h1"}
        rule = {**basis, "fields": {"sku": {**way, field: value}}, "json_ld": "Product" if field == "path" else None}
        yield f"items.fields.{field}", {"extract": {"items": [rule]}}


def examples_of(schema: str) -> Iterator[tuple[str, Any]]:
    for field, part in SCHEMAS[schema]["properties"].items():
        yield from ((field, value) for value in part.get("examples", ()))


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Serve the API on a database and a broker of its own."""
    folder = tmp_path_factory.mktemp("descriptions")
    broker = BrokerServer(folder / "broker")
    try:
        with served(folder, broker) as found:
            yield found
    finally:
        asyncio.run(broker.embedded.stop())


@pytest.fixture
def client(running: Served) -> Iterator[httpx.Client]:
    headers = {"Authorization": f"Bearer {running.keys[Role.ADMIN]}"}
    with httpx.Client(base_url=running.url, headers=headers, timeout=30) as found:
        yield found


def test_examples_of_the_spec_are_accepted(client: httpx.Client) -> None:
    sent = list(spec_parts())
    assert len(sent) > 40
    for place, part in sent:
        spec: dict[str, Any] = {"seeds": [URL], **part}
        if place == "politeness.host_slots":  # which is only valid without a delay
            spec["politeness"] = {"delay_s": 0, **part["politeness"]}
        if "requisites" in place:
            spec["scope"] = {"requisites": "all", **part.get("scope", {})}
        parse_spec(spec)
        answer = client.post("/v1/crawls/described/plan", json={"spec": spec})
        assert answer.status_code == 200, f"{place}: {answer.text}"


def test_examples_of_the_configuration_are_accepted(client: httpx.Client) -> None:
    sections = {"worker": "WorkerValues", "master": "MasterValues", "storage": "StorageValues"}
    bodies = [
        {section: {field: value}}
        for section, schema in {**sections, "retention": "RetentionValues"}.items()
        for field, value in examples_of(schema)
    ]
    bodies += [{field: value} for field, value in examples_of("HotConfiguration")]
    assert len(bodies) > 20
    for body in bodies:
        answer = client.put("/v1/config", json=body)
        assert answer.status_code == 200, f"{body}: {answer.text}"


@pytest.mark.long
def test_examples_of_bodies_and_queries_are_accepted(client: httpx.Client) -> None:
    """A cursor is only valid in the list that gave it, and a time that is over blocks no host."""
    assert client.put("/v1/crawls/docs", json={"spec": {"seeds": [URL]}}).status_code in (200, 201)
    for path, item in DOCUMENT["paths"].items():
        for method, operation in item.items():
            if path.startswith("/v1/") and not path.endswith("/events"):
                _sent(client, method, path, operation)


def _sent(client: httpx.Client, method: str, path: str, operation: dict[str, Any]) -> None:
    values = {
        each["name"]: each.get("example", each["schema"].get("examples", [None])[0])
        for each in operation.get("parameters", ())
    }
    place = re.sub(r"\{(\w+)\}", lambda name: str(values[name[1]] or "pages"), path)
    query = {
        each["name"]: values[each["name"]]
        for each in operation.get("parameters", ())
        if each["in"] == "query" and values[each["name"]] is not None and each["name"] != "cursor"
    }
    content = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    body = SCHEMAS.get(content.get("$ref", "").rpartition("/")[2], {})
    sent = (body.get("examples") or [{name: each["examples"][0] for name, each in body.get("properties", {}).items()
            if each.get("examples")}])[0]  # fmt: skip
    if "role" in body.get("properties", {}):
        sent["role"] = "viewer"
    answer = client.request(method, place, params=query, json=sent if body else None)
    assert answer.status_code not in (400, 422), f"{method} {place} {query} {sent}: {answer.text}"
    assert answer.status_code < 500 or answer.status_code == 503, f"{method} {place}: {answer.text}"
