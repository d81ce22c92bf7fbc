"""`orb ctl create` after a lost answer: what its first attempt created is no conflict."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from cli.terminal.exits import Failed
from tests.support.api.scripted_masters import Masters, problem

BROKEN = httpx.ReadError("cut")
STALE = problem(412, "lost-update")
GONE = problem(404, "not-found")
THERE = httpx.Response(200, json={"host": "a.test", "slots": 2, "name": "one", "seeds": []}, headers={"ETag": '"1"'})


def plan(action: str) -> httpx.Response:
    return httpx.Response(200, json={"action": action, "changes": [], "warnings": []})


@pytest.mark.parametrize(
    ("document", "title"),
    [
        ("host: a.test\nslots: 2\n", "host-policy/a.test"),
        ("kind: seed-set\ncrawl: docs\nname: one\nseeds: []\n", "seed-set/docs/one"),
    ],
)
def test_create_whose_answer_was_lost_compares_what_exists(tmp_path: Path, document: str, title: str) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(document)
    out = Masters([BROKEN, STALE, THERE, plan("none")], count=2).run("create", "-f", str(file))
    assert out.startswith(f"{title} created\n")
    others: list[list[Any]] = [[STALE], [BROKEN, STALE, THERE, plan("update")], [BROKEN, STALE, GONE, plan("create")]]
    for answers in others:
        with pytest.raises(Failed, match="exists already"):
            Masters(answers, count=2).run("create", "-f", str(file))


def test_create_of_a_key_with_lost_answer_names_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "key.yaml"
    file.write_text("kind: api-key\nname: ci\nrole: viewer\n")
    taken = problem(409, "exists", "this request made the key 'ci' before, and its secret is not shown again")
    there = httpx.Response(200, json={"name": "ci", "key": None, "role": "viewer"}, headers={"ETag": '"1"'})
    masters = Masters([BROKEN, taken, there, plan("none")], count=2)
    with pytest.raises(
        Failed, match="answer with its secret was lost: run `orb ctl keys revoke ci` and repeat the com"
    ):
        masters.run("create", "-f", str(file))
    assert [each.method for each in masters.asked] == ["POST", "POST", "GET", "POST"]
    with pytest.raises(Failed) as refused:
        Masters([problem(409, "exists", "there is a key 'ci' already")]).run("create", "-f", str(file))
    assert "secret" not in str(refused.value)
    assert capsys.readouterr().out == ""
