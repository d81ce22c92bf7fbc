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
