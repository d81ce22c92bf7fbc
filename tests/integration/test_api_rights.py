"""Every route, asked by every role: the table of rights is what the API does, the document says and the page shows."""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute

from api.http.routing import Router, check_rights
from api.security.rights import RIGHTS, Right, UndeclaredRoute, right_of
from api.server.app import ROUTERS, application
from shared.domain.ops.access import Role
from tests.support import rights_table
from tests.support.api.rest_api import Api, api, client_of, openapi_document

PATHS = {
    "name": "docs", "revision": "1", "command_id": "c1", "page": "4099-" + "0" * 32, "version": "1", "segment": "s",
    "what": "urls.jsonl", "item": "0" * 32, "host": "example.org", "exclusion_id": "7", "schedule": "nightly",
    "letter": "7", "id": "m9", "key_id": "0" * 16, "key_name": "ci", "set": "partners", "value": "log_level",
}  # fmt: skip
GUARDED = [right for right in RIGHTS if right.role is not None]


async def asked(served: Api, right: Right, key: str | None) -> int:
    """The status of a request that nothing but its rights could let through: its body is not readable."""
    path = re.sub(r"{(\w+)}", lambda match: PATHS[match[1]], right.path)
    async with client_of(served.app, key) as client:
        response = await client.request(right.method, path, content=None if right.method == "GET" else b"{not json")
    return response.status_code


def test_each_role_may_send_what_the_table_says_and_nothing_else(tmp_path: Path) -> None:
    async def story() -> None:
        wrong = []
        async with api(tmp_path / "crawl.db") as served:
            for right in GUARDED:
                assert await asked(served, right, None) == 401, right
                for role in Role:
                    refused = await asked(served, right, served.keys[role]) in (401, 403)
                    if refused is right.allows(role):
                        wrong.append((role, right))
        assert wrong == []

    asyncio.run(story())


def test_only_health_and_documentation_need_no_key(tmp_path: Path) -> None:
    assert {right.resource for right in RIGHTS if right.role is None} == {"health", "docs"}
    assert all(right.path.startswith("/v1/") for right in GUARDED)

    async def story() -> None:
        async with api(tmp_path / "crawl.db") as served:
            for right in set(RIGHTS) - set(GUARDED):
                assert await asked(served, right, None) not in (401, 403), right

    asyncio.run(story())


def test_keys_and_the_audit_log_are_for_admins_and_viewers_change_nothing() -> None:
    """The table itself: what a mistake in it would give away."""
    for right in GUARDED:
        if right.resource in ("api-keys", "audit"):
            assert right.role is Role.ADMIN, right
        elif right.method != "GET" and right.verb != "plan":
            assert right.role is Role.OPERATOR, right


def test_the_table_has_exactly_the_routes_that_are_served() -> None:
    served = {(method, route.path_format) for method, route in routes()}
    assert {(right.method, right.path) for right in RIGHTS} == served | {("GET", "/openapi.json")}
    assert len({(right.resource, right.verb) for right in RIGHTS}) == len(RIGHTS), "two rows have one name"


def routes() -> list[tuple[str, APIRoute]]:
    found = [route for router in ROUTERS for route in router.routes if isinstance(route, APIRoute)]
    return [(method, route) for route in found for method in route.methods or ()]


def test_a_route_that_the_table_lacks_cannot_be_made() -> None:
    router = Router(prefix="/v1/secrets")
    with pytest.raises(UndeclaredRoute, match=r"GET /v1/secrets has no row in the table of rights"):
        router.get("")(lambda: None)
    with pytest.raises(UndeclaredRoute):
        right_of("POST", "/v1/crawls/{name}/unknown")


@pytest.mark.parametrize("path", ["/v1/crawls", "/v1/secrets", "/secrets"])
def test_an_application_with_a_route_of_other_making_does_not_start(path: str) -> None:
    app: FastAPI = application()
    app.get(path)(lambda: None)
    with pytest.raises(UndeclaredRoute):
        check_rights(app)


def test_the_document_shows_the_row_of_each_operation() -> None:
    paths: dict[str, dict[str, Any]] = openapi_document()["paths"]
    for path, item in paths.items():
        for method, operation in item.items():
            right = right_of(method.upper(), path)
            shown = operation.get("x-orb-right")
            if right.role is None:
                assert shown is None
                assert "security" not in operation
            else:
                assert shown == {
                    "resource": right.resource,
                    "verb": right.verb,
                    "role": right.role,
                    "rate": right.route_class,
                }
                assert f"Needs the role `{right.role}`." in operation["description"]


def test_the_page_has_the_table_of_today() -> None:
    text = rights_table.PAGE.read_text("utf-8")
    assert text == rights_table.page(text), "run `.venv/bin/python -m tests.support.rights_table`"


def test_the_tests_that_the_page_names_are_there() -> None:
    text = rights_table.PAGE.read_text("utf-8").partition("## What an attacker controls")[2]
    rows = [line for line in text.splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 10
    for row in rows:
        named = re.findall(r"`(\w+/test_\w+)`", row.split("|")[-2])
        assert named, row
        for name in named:
            assert (rights_table.PAGE.parents[1] / "tests" / f"{name}.py").is_file(), name
