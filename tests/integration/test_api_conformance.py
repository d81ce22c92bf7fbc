"""The API against its own document: whatever is asked, by whom, the answer is one that the document foretells.

Requests are made from the document, right ones and wrong ones, and sent to an application on a real database and a real
broker. Judged is all that the tool can judge: no server error, no status, media type, header or body that is not in the
document, wrong requests refused and right ones not, no answer without a key, no method that is not declared.
`ORB_TEST_SEED=n` draws other requests. `ORB_TEST_REQUESTS=n` draws n for each operation, and adds one for each way in
which a request can be wrong: 150 take half an hour.
"""

import asyncio
import gzip
import json
import os
import re
import zlib
from collections.abc import Iterator, Mapping
from http.client import HTTPConnection
from typing import Any, Final
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx
import pytest
import schemathesis
from schemathesis.config import SchemathesisConfig
from schemathesis.schemas import BaseSchema

from api.http.deps import TAGS
from shared.domain.ops.access import Role
from shared.domain.web.url import MAX_URL_CHARS
from tests.support.api.api_server import Served, served
from tests.support.api.rest_api import SPEC, openapi_document, problem
from tests.support.database.large_crawl import grown
from tests.support.engines.nats_server import BrokerServer
from tests.support.processes.kill_rounds import SEED

AnyCase = schemathesis.Case[Any]

LONE: Final = "\ud800"
"""Half of a pair of surrogates. JSON can have it as an escape, but UTF-8 cannot."""
ITEM: Final = {"name": "a", "fields": {"a": {"css": LONE}}}

REQUESTS: Final = "ORB_TEST_REQUESTS"
FEW: Final = "4"
FOLLOWED: Final[Mapping[str, tuple[dict[str, str], dict[str, str]]]] = {
    "/v1/events": ({"after": "-1"}, {"after": "0"}),
    "/v1/crawls/{name}/events": ({"after": "-1"}, {"after": "0"}),
    "/v1/crawls/{name}/changes/stream": ({"since": "yesterday"}, {"since": "2030-01-01T00:00:00Z"}),
}
"""Streams, which do not end by themselves. They are asked for once, below, with wrong and with right parameters."""

BEYOND_THE_DOCUMENT: Final = frozenset(
    {
        "the crawl spec cannot be used",
        "the schedule cannot be used",
        "the declaration cannot be used",
        "the configuration cannot be used",
        "the address has a NUL character in it",
        "the cursor is not valid",
        "the URL is not valid",
        "the query matches too many captures",
        "the target cannot be excluded",
        "the host is not valid",
        "no seeds are given",
        "a crawl's spec needs at least one seed",
        "the seeds are not valid",
        "the time is not valid",
        "the filter is not valid",
        "this idempotency key was used for another request",
    }
)
"""Rules that a JSON Schema cannot state: refusals by them are foreseen, though the request fits the document."""


@schemathesis.serializer("application/jsonl")
def _lines(_context: schemathesis.SerializationContext, value: Any) -> bytes:
    """A body of lines is its text."""
    return value if isinstance(value, bytes) else str(value).encode(errors="surrogatepass")


def document() -> BaseSchema:
    """Return the served document, with the number and kinds of requests that are made of each operation."""
    accepted = ["2xx", "3xx", "401", "403", "404", "409", "412", "429", "503"]
    config = SchemathesisConfig.from_dict(
        {
            "seed": int(os.environ.get(SEED, "1")),
            "generation": {"max-examples": int(os.environ.get(REQUESTS, FEW)), "no-shrink": True, "database": "none"},
            "phases": {"coverage": {"enabled": REQUESTS in os.environ}},
            "checks": {"positive_data_acceptance": {"expected-statuses": accepted}},
        }
    )
    schema = schemathesis.openapi.from_dict(openapi_document(), config=config)
    return schema.exclude(path=list(FOLLOWED))


DOCUMENT: Final = document()


@schemathesis.hook
def filter_failure(_context: Any, failure: Any, case: AnyCase, response: Any) -> bool:
    """Whether it is one: not if the tool is wrong about the request."""
    match failure.code:
        case "ST202":  # a right request was refused
            foreseen = response.status_code in (400, 422) and response.json()["detail"] in BEYOND_THE_DOCUMENT
            return not (foreseen or misfits(case) or miscoded(case, response) or mistimed(response))
        case "ST201":  # a wrong request was taken
            return not (in_short(case.body) or unsent(case, response))
        case "ST204" | "ST205":  # a method that the document does not give to this path
            return not fits_another(case.operation.path)
    return True


def mistimed(response: Any) -> bool:
    """Return True if only texts were refused that are no times. The tool draws some as long as a time may be."""
    wrong = response.json().get("errors", []) if response.status_code == 422 else []
    return bool(wrong) and all(each["message"].startswith("expected a time as") for each in wrong)


def fits_another(path: str) -> bool:
    """Return True if another path of the document fits this one, and has methods of its own there."""
    others = (other for other in openapi_document()["paths"] if other != path)
    return any(re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", other), path) for other in others)


def misfits(case: AnyCase) -> bool:
    """The tool takes headers for right that are not of their pattern."""
    patterns = {"If-Match": TAGS, "If-None-Match": r".*" if case.method == "GET" else r"\*"}
    sent: dict[str, str] = dict(case.headers or {})
    return any(name in sent and re.fullmatch(pattern, sent[name]) is None for name, pattern in patterns.items())


def miscoded(case: AnyCase, response: Any) -> bool:
    """The tool draws the header `Content-Encoding: gzip` for any body; what is not gzip then is refused."""
    headers: dict[str, str] = dict(case.headers or {})
    if headers.get("Content-Encoding") != "gzip" or response.status_code != 400:
        return False
    try:
        gzip.decompress(response.request.body or b"")
    except (OSError, EOFError, zlib.error):
        return True
    return False


def unsent(case: AnyCase, response: Any) -> bool:
    """What the tool did wrong did not arrive: a parameter that is not in the document, with an empty list, of which
    nothing stands in the address; and a key left out, which `conforms` adds."""
    assert case.meta is not None, "whatever is drawn says how"
    arrived = parse_qs(urlsplit(response.request.url).query, keep_blank_values=True)
    lost = {name for name, value in (case.query or {}).items() if value == [] and name not in arrived}
    done = {(each.parameter_location.value, each.keywords, each.parameter) for each in case.meta.phase.data.mutations}
    beside = {("header", ("required",), "Authorization")}
    return bool(lost) and done - beside == {("query", ("additionalProperties",), None)}


def in_short(body: Any) -> bool:
    """A spec may be written in short, as people do in files: an empty section has its defaults, one seed needs no
    list. The document has the long form only, for the sake of typed clients."""
    spec = body.get("spec") if isinstance(body, dict) else None
    return isinstance(spec, dict) and (_has_nothing(spec) or not isinstance(spec.get("seeds", []), list))


def _has_nothing(section: dict[str, Any]) -> bool:
    return any(each is None or (isinstance(each, dict) and _has_nothing(each)) for each in section.values())


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """An API with a crawl, thousands of whose URLs are known."""
    folder = tmp_path_factory.mktemp("conformance")
    broker = BrokerServer(folder / "broker")
    try:
        with served(folder, broker, wrong_keys=0) as made:  # the tool sends hundreds
            key = {"Authorization": f"Bearer {made.keys[Role.OPERATOR]}"}
            crawl = httpx.post(f"{made.url}/v1/crawls", json={"name": "docs", "spec": SPEC}, headers=key, timeout=30)
            assert crawl.status_code == 201, crawl.text
            grown(folder / "crawl.db", crawl.json()["id"], 2_000)
            yield made
    finally:
        asyncio.run(broker.embedded.stop())


@pytest.mark.parametrize("role", Role)
@DOCUMENT.parametrize()
@pytest.mark.timeout(1800 if REQUESTS in os.environ else 300)
def test_every_answer_is_in_the_document(case: AnyCase, running: Served, role: Role) -> None:
    headers = {"Authorization": f"Bearer {running.keys[role]}"}
    case.call_and_validate(base_url=running.url, headers=headers, timeout=30)


def test_nothing_that_a_viewer_asks_changes_anything(running: Served) -> None:
    """Every write of the document, well formed, is refused for want of a role, and none is in the audit log."""
    viewer = {"Authorization": f"Bearer {running.keys[Role.VIEWER]}"}
    admin = {"Authorization": f"Bearer {running.keys[Role.ADMIN]}"}
    with httpx.Client(base_url=running.url, timeout=30) as client:
        tried = 0
        for path, item in openapi_document()["paths"].items():
            for method in set(item) - {"get"}:
                if path.endswith("/plan"):
                    continue  # a dry run, for everybody
                place = re.sub(r"\{(letter|revision)\}", "1", path)
                place = re.sub(r"\{\w+\}", "docs", place)
                answer = client.request(method, place, headers=viewer, params=_needed(item[method]), json={})
                assert answer.status_code in (403, 422), f"{method} {path}: {answer.text}"
                tried += 1
        assert tried > 20
        log = client.get("/v1/audit", headers=admin, params={"actor": "viewer", "limit": 500}).json()
    assert log["items"] == []


def _needed(operation: dict[str, Any]) -> dict[str, str]:
    """The query parameters without which it is not well formed."""
    return {each["name"]: "docs" for each in operation.get("parameters", ()) if each["in"] == "query"}


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("path", FOLLOWED)
def test_streams_begin_as_the_document_says(path: str, role: Role, running: Served) -> None:
    headers = {"Authorization": f"Bearer {running.keys[role]}"}
    place, (wrong, right) = running.url + path.format(name="followed"), FOLLOWED[path]
    admin = {"Authorization": f"Bearer {running.keys[Role.ADMIN]}"}
    httpx.put(f"{running.url}/v1/crawls/followed", json={"spec": SPEC}, headers=admin, timeout=30).raise_for_status()
    assert httpx.get(place, timeout=30).status_code == 401
    assert httpx.get(place, headers=headers, params=wrong, timeout=30).status_code == 422
    documented = openapi_document()["paths"][path]["get"]["responses"]["200"]["content"]
    with httpx.stream("GET", place, headers=headers, params=right, timeout=30) as stream:
        assert stream.status_code == 200
        assert stream.headers["content-type"].partition(";")[0] in documented
        assert next(stream.iter_lines())


@pytest.mark.parametrize(
    ("method", "path", "headers", "body"),
    [
        ("PUT", "/v1/host-policies/example.org", {}, {"delay_s": False}),
        ("PUT", "/v1/host-policies/example.org", {}, {"delay_s": "1"}),
        ("PUT", "/v1/host-policies/example.org", {}, {"block": {"reason": "x", "until": 0}}),
        ("PUT", "/v1/host-policies/example.org", {}, {"block": {"reason": "x", "until": "0"}}),
        ("POST", "/v1/crawls/docs/plan", {}, {"spec": SPEC, "start": "yes"}),
        ("PUT", "/v1/config", {}, {"worker": {"max_visits": True}}),
        ("PUT", "/v1/config", {}, {"worker": {"max_visits": 1.5}}),
        ("PUT", "/v1/crawls/docs", {"If-None-Match": '"7-3"'}, {"spec": SPEC}),
        ("PUT", "/v1/host-policies/example.org", {"If-None-Match": '"7-3"'}, {}),
        ("PUT", "/v1/crawls/docs/seed-sets/a", {"If-None-Match": '"7-3"'}, {"seeds": []}),
        ("PUT", "/v1/schedules/a", {"If-None-Match": '"7-3"'}, {"crawl": "docs", "verb": "pause", "every_s": 3600}),
        ("PUT", "/v1/api-keys/a", {"If-None-Match": '"7-3"'}, {"role": "viewer"}),
        ("PUT", "/v1/exclusions/1", {"If-None-Match": '"7-3"'}, {"reason": "x"}),
        ("PUT", "/v1/config", {"If-None-Match": '"7-3"'}, {}),
        ("PUT", "/v1/config/log_level", {"If-None-Match": '"7-3"'}, {"value": "debug"}),
        ("DELETE", "/v1/crawls/docs", {"If-None-Match": '"7-3"'}, None),
        ("PATCH", "/v1/crawls/docs", {}, {"labels": {"Not a label": "x"}}),
        ("PATCH", "/v1/crawls/docs", {}, {"labels": {"team": "x" * 256}}),
        ("GET", "/v1/audit?until=0.5", {}, None),
        ("GET", "/v1/crawls?stat=running", {}, None),
        ("POST", "/v1/crawls/docs/pause?if_match=1", {}, None),
    ],
)
def test_what_was_once_taken_for_something_else_is_refused(
    method: str, path: str, headers: dict[str, str], body: Any, running: Served
) -> None:
    """A row for each that was found: numbers for times and truths, other ETags for `*`, labels that a put refuses,
    and filters that were ignored."""
    key = {"Authorization": f"Bearer {running.keys[Role.ADMIN]}"}
    answer = httpx.request(method, running.url + path, json=body, headers={**key, **headers}, timeout=30)
    problem(answer, 422, "invalid")


@pytest.mark.parametrize(
    ("method", "path", "body", "wrong"),
    [
        ("POST", "/v1/crawls/x/plan", {"spec": {**SPEC, LONE: 1}}, r"spec.\ud800"),
        ("POST", "/v1/crawls/x/plan", {"spec": {**SPEC, "scope": {LONE: 1}}}, r"spec.scope.\ud800"),
        ("POST", "/v1/crawls/x/plan", {"spec": {**SPEC, "scope": {"mode": LONE}}}, "spec.scope.mode"),
        ("PUT", "/v1/crawls/x", {"spec": {**SPEC, "extract": {LONE: {LONE: LONE}}}}, r"spec.extract.\ud800"),
        ("PUT", "/v1/crawls/x", {"spec": {**SPEC, "extract": {"items": [ITEM]}}}, "spec.extract.items[0].fields.a.css"),
        ("POST", "/v1/crawls/docs/seed-sets/y/plan", {"seeds": [{"url": "http://a.b/", LONE: 1}]}, r"seeds[0].\ud800"),
        ("PUT", "/v1/crawls/docs/seed-sets/y", {"seeds": [{"url": "http://a.b/", LONE: 1}]}, r"seeds[0].\ud800"),
        ("PATCH", "/v1/crawls/docs", {"spec": {LONE: 1}}, r"spec.\ud800"),
        ("PATCH", "/v1/crawls/docs", {"labels": {LONE: "x"}}, "labels." + 3 * "\N{REPLACEMENT CHARACTER}"),
        ("POST", "/v1/exclusions/plan", {"target": LONE, "reason": "x"}, "target"),
        ("PUT", "/v1/config", {LONE: 1}, ""),
    ],
)
def test_text_that_utf8_cannot_encode_is_refused_where_it_is(
    method: str, path: str, body: Any, wrong: str, running: Served
) -> None:
    """A lone surrogate as the name of a field was answered 500, since the answer named the field."""
    key = {"Authorization": f"Bearer {running.keys[Role.ADMIN]}", "Content-Type": "application/json"}
    answer = httpx.request(method, running.url + path, content=json.dumps(body), headers=key, timeout=30)
    errors = problem(answer, 422, "invalid")["errors"]
    assert [each["path"] for each in errors] == [wrong]
    assert "codec" not in errors[0]["message"]
    assert "raw data" not in errors[0]["message"]


def test_labels_stay_within_their_number_when_some_are_added(running: Served) -> None:
    key = {"Authorization": f"Bearer {running.keys[Role.ADMIN]}"}
    with httpx.Client(base_url=running.url, headers=key, timeout=30) as client:
        made = client.post(
            "/v1/crawls", json={"name": "labelled", "spec": SPEC, "labels": {f"l{n}": "x" for n in range(64)}}
        )
        assert made.status_code == 201, made.text
        problem(client.patch("/v1/crawls/labelled", json={"labels": {"more": "x"}}), 422, "invalid")
        swapped = client.patch("/v1/crawls/labelled", json={"labels": {"more": "x", "l0": None}})
        assert len(swapped.json()["labels"]) == 64


@pytest.mark.long
def test_every_resource_names_its_methods_to_who_asks_by_another(running: Served) -> None:
    paths = openapi_document()["paths"]
    for path in paths:
        place = re.sub(r"\{(letter|revision)\}", "1", path)
        place = re.sub(r"\{\w+\}", "docs", place)
        key = {"Authorization": f"Bearer {running.keys[Role.ADMIN]}"}
        answer = httpx.request("OPTIONS", running.url + place, headers=key, timeout=30)
        problem(answer, 405, "method-not-allowed")
        fitting = [item for other, item in paths.items() if re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", other), place)]
        named = set(answer.headers["allow"].split(", ")) - {"HEAD"}
        own = {method.upper() for method in paths[path]}
        assert own <= named <= {method.upper() for item in fitting for method in item}, path


def test_urls_as_long_as_the_document_allows_are_answered(running: Served) -> None:
    """Written as a parameter one takes up to twelve bytes a character, which was more than the server read."""
    url = "https://example.org/" + "\U000f00d9" * (MAX_URL_CHARS - 20)
    connection = HTTPConnection(running.url.removeprefix("http://"), timeout=30)
    try:
        key = {"Authorization": f"Bearer {running.keys[Role.VIEWER]}"}
        connection.request("GET", f"/v1/crawls/docs/urls/lookup?{urlencode({'url': url})}", headers=key)
        answer = connection.getresponse()
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.status in (404, 422)
    finally:
        connection.close()
