"""What the verbs of keys send, and how keys are shown."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from cli.terminal.exits import Environment, Failed, Usage
from tests.support.api.scripted_masters import NOW, Masters, Say, listing, problem

BROKEN = httpx.ReadError("cut")


def a_key(**more: Any) -> dict[str, Any]:
    bounds: dict[str, Any] = {"role": "viewer", "kind": "key", "expires_at": None, "networks": [], "certificate": None}
    times = {"created_at": None, "last_used_at": None, "revoked_at": None}
    return {"id": "0" * 16, "name": "ci", "key": "orb_x", "created_by": "x", "effective": bounds, **times, **more}


def test_new_key_is_alone_on_stdout_and_not_requested_twice(
    capsys: pytest.CaptureFixture[str],
) -> None:
    made = httpx.Response(201, json=a_key())
    assert Masters([made]).run("keys", "create", "ci", "--role", "viewer") == "orb_x\n"
    assert "not shown again" in capsys.readouterr().err


def test_new_key_whose_answer_was_lost_is_to_be_replaced(capsys: pytest.CaptureFixture[str]) -> None:
    advice = r"`orb ctl get key ci` shows the new key, its secret is lost: run `orb ctl keys revoke ci` and create"
    timeout = problem(504, "no-answer", "the leader did not answer in time")
    endings: list[tuple[Say, type[Exception]]] = [(BROKEN, Failed), (timeout, Environment)]
    for answer, ending in endings:
        masters = Masters([answer], count=2)
        with pytest.raises(ending, match=advice):
            masters.run("keys", "create", "ci", "--role", "viewer")
        assert len(masters.asked) == 1
    taken = problem(409, "exists", "there is a key 'ci' already")
    with pytest.raises(Failed) as refused:
        Masters([taken]).run("keys", "create", "ci", "--role", "viewer")
    assert "lost" not in str(refused.value)
    assert capsys.readouterr().out == ""


def test_key_is_shown_with_its_bounds_and_last_use() -> None:
    bounds = {
        "role": "operator", "kind": "key", "expires_at": "2001-01-01T00:00:00Z",
        "networks": ["10.1.0.0/16", "fd00::/8"], "certificate": "dns:tf.example.org",
    }  # fmt: skip
    used = NOW - timedelta(hours=3, minutes=20, seconds=30)
    found = a_key(effective=bounds, last_used_at=used.isoformat())
    masters = Masters([httpx.Response(200, json=found)])
    title, row = masters.run("get", "key", "ci").splitlines()
    assert masters.told == ["m1 GET /v1/api-keys/ci"]
    assert title.split() == ["NAME", "ROLE", "STATE", "ENDS", "NETWORKS", "CERTIFICATE", "USED", "AGE", "BY", "ID"]
    assert row.split() == [
        "ci", "operator", "ended", "-", "10.1.0.0/16,fd00::/8", "dns:tf.example.org", "3h20m", "-", "x", "0" * 16,
    ]  # fmt: skip
    every = listing([a_key(), a_key(revoked_at="2030-01-01T00:00:00Z"), a_key(effective=bounds)])
    rows = Masters([every]).run("get", "keys", "--revoked", "true").splitlines()[1:]
    assert [each.split()[2] for each in rows] == ["valid", "revoked", "ended"]


def test_bounds_of_a_new_key_are_sent_as_given() -> None:
    masters = Masters([httpx.Response(201, json=a_key())])
    words = ("--network", "10.1.0.0/16", "--network", "fd00::/8", "--certificate", "sha256:" + "AB:" * 31 + "AB")
    masters.run("keys", "create", "ci", "--role", "operator", "--expires", "2030-06-01", *words)
    assert json.loads(masters.asked[0].content) == {
        "name": "ci", "role": "operator", "expires_at": "2030-06-01T00:00:00+00:00",
        "networks": ["10.1.0.0/16", "fd00::/8"], "certificate": "sha256:" + "AB:" * 31 + "AB",
    }  # fmt: skip


@pytest.mark.parametrize(("text", "days"), [("90d", 90), ("36h", 1.5)])
def test_key_may_end_after_a_duration(text: str, days: float) -> None:
    masters = Masters([httpx.Response(201, json=a_key())])
    masters.run("keys", "create", "ci", "--role", "viewer", "--expires", text)
    end = datetime.fromisoformat(json.loads(masters.asked[0].content)["expires_at"])
    assert abs(end - datetime.now(UTC) - timedelta(days=days)) < timedelta(minutes=1)


@pytest.mark.parametrize("text", ["soon", "2030-13-01", "-5d", "9999999999999d", ""])
def test_end_of_a_key_that_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(Usage, match=r"--expires"):
        Masters([]).run("keys", "create", "ci", "--role", "viewer", f"--expires={text}")
