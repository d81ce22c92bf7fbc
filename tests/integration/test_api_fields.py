"""What is wrong with a request is told all at once, in words, each with its place and what to do."""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from api.http.deps import TAGS
from api.http.fields import FORMS
from shared.domain.ops.access import Role
from tests.support.api.rest_api import Api, Story, openapi_document, problem
from tests.support.api.rest_api import told as told


def wrongs(body: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {each["path"]: (each["message"], each.get("hint", "")) for each in body["errors"]}


def test_a_bad_name_bad_labels_and_a_bad_spec_are_told_in_one_answer(told: Callable[[Story], None]) -> None:
    wanted = {
        "name": "Bad Name",
        "labels": {"team": "a\nb", "Owner": "x"},
        "strat": False,
        "spec": {"seeds": ["example.org"], "scope": {"mode": "hots", "max_depht": 3}, "pool": "EU"},
    }

    async def story(served: Api) -> None:
        async with served.as_role(Role.OPERATOR) as client:
            body = problem(await client.post("/v1/crawls", json=wanted), 422, "invalid")
            found = wrongs(body)
            form = "expected lower-case letters, digits and inner hyphens, at most 63, got "
            assert found == {
                "name": (form + "'Bad Name'", "did you mean bad-name?"),
                "labels.team": ("expected one line without control characters, got 'a\\nb'", ""),
                "labels.Owner": (form + "'Owner'", "did you mean owner?"),
                "strat": ("unknown field", "did you mean start?"),
                "spec.seeds[0].url": ("'example.org' has no scheme", "did you mean https://example.org/?"),
                "spec.scope.mode": (
                    "expected one of host, domain, prefix, any, got 'hots'",
                    "did you mean host?",
                ),
                "spec.scope.max_depht": ("unknown field", "did you mean max_depth?"),
                "spec.pool": (form + "'EU'", ""),
            }
            # The same where the name stands in the path, and where nothing would be changed.
            for send, at in ((client.put, "/v1/crawls/Bad"), (client.post, "/v1/crawls/Bad/plan")):
                body = problem(await send(at, json={"spec": {"seeds": [], "bugdet": {}}}), 422, "invalid")
                assert set(wrongs(body)) == {"path.name", "spec.seeds", "spec.bugdet"}

    told(story)


def test_a_name_in_a_patched_or_replaced_spec_is_still_held_to_the_crawls(told: Callable[[Story], None]) -> None:
    async def story(served: Api) -> None:
        await served.created("docs")
        spec = {"seeds": ["https://example.org/"]}
        async with served.as_role(Role.OPERATOR) as client:
            for send in (client.put, client.patch):
                body = problem(await send("/v1/crawls/docs", json={"spec": {**spec, "name": "crawl"}}), 422, "invalid")
                assert set(wrongs(body)) == {"spec.name"}
                assert (await send("/v1/crawls/docs", json={"spec": {**spec, "name": "docs"}})).status_code == 200

    told(story)


def test_an_unknown_value_of_the_configuration_is_told_with_what_was_meant(told: Callable[[Story], None]) -> None:
    wanted = {
        "worker": {"visit": 8},
        "master": {"report_batch_size": 0, "grants": 3},
        "pools": {"Big": {}, "eu": {"max_visits": "many"}},
        "log_level": "loud",
    }

    async def story(served: Api) -> None:
        async with served.as_role(Role.OPERATOR) as client:
            found = wrongs(problem(await client.put("/v1/config", json=wanted), 422, "invalid"))
        assert found["worker.visit"] == ("unknown field", "did you mean max_visits?")
        assert found["master.grants"] == ("unknown field", "did you mean grant_s?")
        assert found["master.report_batch_size"] == ("expected at least 1, got 0", "")
        assert found["pools.eu.max_visits"] == ("expected a whole number, got 'many'", "")
        assert found["log_level"][0].startswith("expected one of debug, info")

    told(story)


def test_every_pattern_that_a_request_is_held_to_is_said_in_words() -> None:
    document = openapi_document()
    schemas = document["components"]["schemas"]
    # A closed variant of a schema that answers share is a part of the spec, which has words of its own.
    named = {
        name: each
        for name, each in schemas.items()
        if name.endswith(("Input", "Values")) and name.removesuffix("Input") not in schemas
    }
    patterns = set(re.findall(r'"pattern": ("(?:[^"\\]|\\.)*")', json.dumps([document["paths"], named])))
    asked = {json.loads(each) for each in patterns} - {TAGS}
    assert len(asked) > 5
    assert asked - set(FORMS) == set(), "say it in api.http.fields.FORMS"


@pytest.mark.parametrize(
    ("method", "at", "body"),
    [
        ("GET", "/v1/crawls?limit=0&state=runing", None),
        ("GET", "/v1/crawls?limit=many&prefix=" + "a" * 64, None),
        ("GET", "/v1/audit?since=yesterday&actor=", None),
        ("POST", "/v1/crawls", []),
        ("POST", "/v1/crawls", {"name": 7, "spec": 7, "start": "yes", "labels": 7}),
        ("POST", "/v1/api-keys", {"name": "", "role": "chief"}),
        ("PUT", "/v1/host-policies/a.test", {"block": {"until": 7}}),
        ("PUT", "/v1/host-policies/a.test", {"delay_s": 1e9, "slots": "all", "block": {"reason": "", "until": "now"}}),
        ("DELETE", "/v1/crawls/docs/seeds", {"seeds": ["a"] * 2000, "all": 1}),
    ],
)  # fmt: skip
def test_nothing_is_told_in_the_words_of_the_framework(
    method: str, at: str, body: Any, told: Callable[[Story], None]
) -> None:
    async def story(served: Api) -> None:
        async with served.as_role(Role.ADMIN) as client:
            answer = await client.request(method, at, json=body)
        said = answer.text
        assert answer.status_code == 422, said
        assert re.search(r"[Ii]nput|should|valid string|Value error|pydantic|dictionary", said) is None, said

    told(story)
