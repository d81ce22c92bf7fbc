"""The OpenAPI document: committed as generated, complete, and shown without anything from elsewhere."""

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema_rs

from api.http.forwarding import needs_leader
from api.server.app import application
from tests.support.api.rest_api import client_of, openapi_document

COMMITTED = Path(__file__).resolve().parents[2] / "openapi" / "openapi.json"


def operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, item in openapi_document()["paths"].items():
        for method, operation in item.items():
            yield method.upper(), path, operation


def test_the_committed_document_is_the_one_the_code_makes() -> None:
    made = json.dumps(openapi_document(), indent=2, ensure_ascii=False) + "\n"
    assert COMMITTED.read_text(encoding="utf-8") == made, "run `orb openapi > openapi/openapi.json`"


def test_the_document_is_served_as_it_is_committed() -> None:
    async def got() -> httpx.Response:
        async with client_of(application()) as client:
            return await client.get("/openapi.json")

    assert asyncio.run(got()).json() == json.loads(COMMITTED.read_text(encoding="utf-8"))


def test_every_reference_in_the_document_leads_somewhere() -> None:
    document = openapi_document()
    known = {
        f"#/components/{kind}/{name}"
        for kind in ("schemas", "examples", "responses", "headers")
        for name in document["components"][kind]
    }
    assert known - set(references(document)) == set(), "nothing is left over"
    assert set(references(document)) <= known, "nothing dangles"


def references(part: Any) -> Iterator[str]:
    match part:
        case dict():
            for name, value in part.items():
                if name == "$ref":
                    yield value
                else:
                    yield from references(value)
        case list():
            for each in part:
                yield from references(each)
        case _:
            return


def test_every_operation_is_explained_tagged_and_says_how_it_fails() -> None:
    names = []
    shared = openapi_document()["components"]["responses"]
    for method, path, operation in operations():
        where = f"{method} {path}"
        assert operation["summary"], where
        assert operation["description"], where
        assert operation["tags"], where
        names.append(operation["operationId"])
        if path.startswith("/v1/"):
            assert operation["security"] == [{"key": []}, {"certificate": []}], where
            for status in ("401", "403", "422"):
                answer = operation["responses"][status]
                answer = shared.get(answer.get("$ref", "").rpartition("/")[2], answer)
                assert set(answer["content"]) == {"application/problem+json"}, where
    assert len(names) == len(set(names))


def test_every_example_is_valid_and_every_problem_is_shown_as_its_own_kind() -> None:
    document = openapi_document()
    parts = {"components": document["components"]}

    def wrong(schema: str, example: object) -> list[str]:
        judge = jsonschema_rs.Draft202012Validator({"$ref": f"#/components/schemas/{schema}", **parts})
        return [f"{schema}: {error.message}" for error in judge.iter_errors(example)]

    found = []
    for name, schema in document["components"]["schemas"].items():
        for example in schema.get("examples", ()):
            found += wrong(name, example)
    for name, example in document["components"]["examples"].items():
        found += wrong("ProblemBody", example["value"])
        assert example["value"]["type"] == f"urn:orbweaver:problem:{name}"
    assert found == []
    for method, path, operation in operations():
        for status, answer in operation["responses"].items():
            named = document["components"]["responses"].get(answer.get("$ref", "").rpartition("/")[2], answer)
            problems = named.get("content", {}).get("application/problem+json")
            if status >= "400" and path.startswith("/v1/"):
                assert problems["examples"], f"{method} {path} {status}"
                shown = {document["components"]["examples"][kind]["value"]["status"] for kind in problems["examples"]}
                assert shown == {int(status)}, f"{method} {path} {status}"


def test_which_writes_need_the_leader_is_decided_for_every_one() -> None:
    """A new write is passed on to the leader unless it is listed here: it then must travel through the broker."""
    anywhere = {
        (method, path)
        for method, path, _ in operations()
        if method != "GET" and not needs_leader(method, path.replace("{", "").replace("}", ""))
    }
    assert anywhere == {
        ("POST", "/v1/crawls/{name}/plan"),
        ("POST", "/v1/crawls/{name}/seeds"),
        ("POST", "/v1/crawls/{name}/seed-sets/{set}/plan"),
        ("POST", "/v1/schedules/{schedule}/plan"),
        ("POST", "/v1/host-policies/{host}/plan"),
        ("POST", "/v1/exclusions/plan"),
        ("POST", "/v1/config/plan"),
        ("POST", "/v1/api-keys/{key_name}/plan"),
        ("POST", "/v1/hosts/{host}/unblock"),
        ("POST", "/v1/dead-letters/replay"),
        ("DELETE", "/v1/dead-letters"),
        ("POST", "/v1/dead-letters/{letter}/replay"),
        ("DELETE", "/v1/dead-letters/{letter}"),
    }


def test_the_pages_that_show_it_take_everything_from_here() -> None:
    async def story() -> None:
        async with client_of(application()) as client:
            for page, script in (("/docs", "swagger-ui-bundle.js"), ("/redoc", "redoc.standalone.js")):
                html = (await client.get(page)).text
                places = re.findall(r"""(?:src|href|spec-url)=["']([^"']+)["']""", html)
                assert f"/assets/{script}" in places
                assert [place for place in places if not place.startswith("/")] == []
                for place in places:
                    response = await client.get(place)
                    assert response.status_code == 200, place
                    assert len(response.content) > 500, place
            assert (await client.get("/assets/consts.py")).status_code == 404

    asyncio.run(story())
