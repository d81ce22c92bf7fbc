"""Seed sets and API keys in files: what is put after what, what is refused before any change, and secrets."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from cli.terminal.exits import Failed, Usage
from tests.support.api.scripted_masters import Masters, Say, problem
from tests.unit.test_ctl_apply import BROKEN, GONE, plan, shown, writes

NO_CRAWL = plan("create", warnings=["there is no crawl 'docs': create it before the seed set"])
SET = "kind: seed-set\ncrawl: docs\nname: partners\nseeds: [https://abcdef.test/, 'http://b.test/']\n"
CRAWL = "---\nname: docs\nspec: {{seeds: [https://a.test/], scope: {}}}\n"


def test_seed_set_of_a_crawl_in_the_files_is_put_after_the_crawl(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(SET + CRAWL.format("null"))
    made = httpx.Response(201, json={"name": "partners", "command": "seed-set-7"})
    masters = Masters([GONE, plan("create"), GONE, NO_CRAWL, httpx.Response(201, json={}), made])
    said = masters.run("apply", "-f", str(file))
    assert said == "crawl/docs created\nseed-set/docs/partners created\n"
    assert writes(masters) == ["POST /v1/crawls", "PUT /v1/crawls/docs/seed-sets/partners *"]
    assert json.loads(masters.asked[-1].content) == {"seeds": ["https://abcdef.test/", "http://b.test/"]}
    assert "`orb ctl wait command seed-set-7` waits until all have" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "path", "words"),
    [
        ("", "crawl", "there is no crawl 'docs'"),
        (CRAWL.format("{schemes: [https]}"), "seeds[1].url", "scope.schemes"),
        (CRAWL.format("{schemes: [http, https], max_url_length: 16}"), "seeds[0].url", "16"),
    ],
)
def test_seed_set_is_refused_before_any_change_if_its_crawl_would_refuse_it(
    tmp_path: Path, more: str, path: str, words: str
) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(SET + more)
    masters = Masters([*([GONE, plan("create")] if more else []), GONE, NO_CRAWL])
    with pytest.raises(Usage) as refused:
        masters.run("apply", "-f", str(file))
    said = str(refused.value)
    assert f"{file}: seed-set docs/partners: the seed-set cannot be used:\n  {path}: " in said
    assert words in said
    assert writes(masters) == []


# --- export -----------------------------------------------------------------------------------------------------------


def test_export_of_an_estate_is_whole_or_changes_no_file(tmp_path: Path) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        body = {"revision": 1, "config": {}} if request.url.path == "/v1/config" else {"items": [], "next": None}
        return httpx.Response(200, json=body)

    (tmp_path / "crawls.yaml").mkdir()
    (tmp_path / "schedules.yaml").write_text("of before")
    with pytest.raises(Usage, match=r"crawls\.yaml: it is a folder"):
        Masters(answer).run("export", "estate", "--out", str(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["crawls.yaml", "schedules.yaml"]
    assert (tmp_path / "schedules.yaml").read_text() == "of before"
    (tmp_path / "crawls.yaml").rmdir()
    Masters(answer).run("export", "estate", "--out", str(tmp_path))
    assert (tmp_path / "schedules.yaml").read_text() == ""


def test_export_of_an_unreadable_schedule_fails_and_changes_no_file(tmp_path: Path) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        schedules = [{"name": "nightly", "unreadable": "its spec cannot be read", "verb": None}]
        found = schedules if request.url.path == "/v1/schedules" else []
        body = {"revision": 1, "config": {}} if request.url.path == "/v1/config" else {"items": found, "next": None}
        return httpx.Response(200, json=body)

    with pytest.raises(Failed, match="'nightly' cannot be written to a file: its spec cannot be read"):
        Masters(answer).run("export", "estate", "--out", str(tmp_path))
    assert list(tmp_path.iterdir()) == []


# --- secrets ----------------------------------------------------------------------------------------------------------

ROLE = {"role": "viewer"}
KEY: dict[str, Any] = {"name": "ci", "id": "0" * 16, "key": None, "spec": ROLE, "effective": ROLE}
MADE = httpx.Response(201, json=KEY | {"key": "orb_x"})


@pytest.fixture
def key(tmp_path: Path) -> str:
    file = tmp_path / "key.yaml"
    file.write_text("kind: api-key\nname: ci\nrole: viewer\n")
    return str(file)


@pytest.mark.parametrize("verb", ["apply", "create"])
def test_secret_of_a_new_key_is_printed_once_beside_its_name(
    key: str, verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    planned: list[Say] = [GONE, plan("create")] if verb == "apply" else []
    masters = Masters([*planned, MADE])
    assert masters.run(verb, "-f", key) == "api-key/ci created\norb_x\n"
    assert capsys.readouterr().err == f"orb: key ci (viewer), id {'0' * 16}; it is not shown again\n"
    assert json.loads(masters.asked[-1].content) == {"name": "ci", "role": "viewer"}
    assert json.loads(Masters([*planned, MADE]).run(verb, "-f", key, form="json"))["key"] == "orb_x"
    masters = Masters(planned)
    with pytest.raises(Usage, match="-o name would lose the secret"):
        masters.run(verb, "-f", key, form="name")
    assert writes(masters) == []


def test_key_that_exists_is_changed_without_any_secret(key: str, capsys: pytest.CaptureFixture[str]) -> None:
    changed = httpx.Response(200, json=KEY)
    masters = Masters([shown("0-0-1.7", **KEY), plan("update"), changed])
    assert masters.run("apply", "-f", key, form="name") == "api-key/ci\n"
    assert writes(masters) == ['PUT /v1/api-keys/ci "0-0-1.7"']
    assert capsys.readouterr().err == ""


def test_key_whose_secret_was_lost_with_the_answer_is_named(key: str, capsys: pytest.CaptureFixture[str]) -> None:
    taken = problem(409, "exists", "this request made the key 'ci' before, and its secret is not shown again")
    masters = Masters([GONE, plan("create"), BROKEN, taken, shown("0-0-1", **KEY), plan("none")])
    with pytest.raises(Failed, match="answer with its secret was lost: run `orb ctl keys revoke ci` and repeat"):
        masters.run("apply", "-f", key)
    assert "0 of 1 are done; not done: api-key/ci" in capsys.readouterr().err
    another = [GONE, plan("create"), taken, shown("0-0-1", **KEY), plan("none")]
    assert Masters(another).run("apply", "-f", key) == "api-key/ci unchanged\n"
