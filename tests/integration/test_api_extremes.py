"""Numbers, texts and times at their ends are judged, and never an error of ours."""

import asyncio
import base64
from datetime import UTC, datetime
from pathlib import Path

import pytest

from api.schemas.model import moment_of, ms_of
from shared.domain.ops.access import Role
from tests.support.api.rest_api import SPEC, api, problem

NUMBERED = ("/v1/audit", "/v1/dead-letters", "/v1/hosts", "/v1/config/revisions", "/v1/crawls/docs/revisions")
PLACED = ("/v1/crawls/docs/urls", "/v1/crawls/docs/pages")
NAMED = ("/v1/crawls", "/v1/workers")
BEYOND = (2**63, -(2**63) - 1, 10**30, -2)


def cursor(place: str) -> str:
    return base64.urlsafe_b64encode(place.encode()).decode()


def test_a_cursor_of_what_no_database_holds_is_none_that_a_list_gave(tmp_path: Path) -> None:
    async def story() -> None:
        async with api(tmp_path / "crawl.db") as served, served.as_role(Role.ADMIN) as admin:
            await served.created("docs")
            forged = [(path, str(number)) for path in NUMBERED for number in BEYOND]
            forged += [(path, f'[{number},"AAAA"]') for path in PLACED for number in BEYOND]
            forged += [(path, '"\\u0000"') for path in NAMED]
            forged += [("/v1/api-keys", place) for place in ('["\\u0000","a"]', '["a"]', '[1,"a"]', '"a"')]
            forged += [("/v1/config/revisions", str(2**31)), ("/v1/crawls/docs/revisions", str(2**31))]
            forged += [("/v1/crawls/docs/changes", f"[0,{number},0,0]") for number in (2**40, *BEYOND)]
            for path, place in forged:
                problem(await admin.get(f"{path}?cursor={cursor(place)}"), 422, "invalid")
            for path, place in (*((path, "0") for path in NUMBERED), *((path, '[-1,"AAAA"]') for path in PLACED)):
                assert (await admin.get(f"{path}?cursor={cursor(place)}")).status_code == 200

    asyncio.run(story())


def test_the_audit_log_is_searched_to_the_ends_of_time(tmp_path: Path) -> None:
    async def story() -> None:
        async with api(tmp_path / "crawl.db") as served, served.as_role(Role.ADMIN) as admin:
            ends = {"since": "0001-01-01T00:00:00+14:00", "until": "9999-12-31T23:59:59-14:00"}
            found = await admin.get("/v1/audit", params=ends)
            assert found.status_code == 200
            assert found.json()["items"]

    asyncio.run(story())


@pytest.mark.parametrize("text", ["9999-12-31T23:59:59-14:00", "9999-12-31T23:59:59Z"])
def test_a_host_blocked_until_the_end_of_time_can_be_shown(text: str) -> None:
    assert moment_of(ms_of(datetime.fromisoformat(text))) == datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)


def test_key_with_an_end_before_the_year_1_is_shown_and_listed(tmp_path: Path) -> None:
    """A zone ahead of UTC leads there: the key was stored, and no list of keys could be made any more."""

    async def story() -> None:
        async with api(tmp_path / "crawl.db") as served, served.as_role(Role.ADMIN) as admin:
            bound = {"role": "viewer", "expires_at": "0001-01-01T00:00:00+14:00"}
            planned = await admin.post("/v1/api-keys/old/plan", json=bound)
            assert planned.status_code == 200, planned.text
            made = await admin.put("/v1/api-keys/old", json=bound)
            assert made.status_code == 201, made.text
            assert (made.json()["spec"], made.json()["effective"]["expires_at"]) == (bound, "0001-01-01T00:00:00Z")
            assert "old" in [key["name"] for key in (await admin.get("/v1/api-keys")).json()["items"]]

    asyncio.run(story())


def test_nul_is_refused_wherever_a_caller_may_write_it(tmp_path: Path) -> None:
    """PostgreSQL takes no text with it, so that it was an error of ours there."""

    async def story() -> None:
        async with api(tmp_path / "crawl.db") as served, served.as_role(Role.ADMIN) as admin:
            for address in (
                "/v1/audit?actor=%00",
                "/v1/crawls?label=a%3D%00",
                "/v1/hosts?crawl=a%00",
                "/v1/commands/%00",
            ):
                problem(await admin.get(address), 400, "malformed")
            for text in ("a\0b", "a\nb", "\x1b[2J"):
                problem(await admin.post("/v1/api-keys", json={"name": text, "role": "viewer"}), 422, "invalid")
                labelled = {"name": "docs", "labels": {"team": text}, "spec": SPEC}
                problem(await admin.post("/v1/crawls", json=labelled), 422, "invalid")
            labelled = {"name": "docs", "labels": {"team": "Zoë's \U0001f577"}, "spec": SPEC}
            assert (await admin.post("/v1/crawls", json=labelled)).status_code == 201
            taken = {"name": "Zoë's \U0001f577", "role": "viewer"}
            problem(await admin.post("/v1/api-keys", json=taken), 422, "invalid")  # it is a part of a path

    asyncio.run(story())
