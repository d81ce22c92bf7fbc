"""A refusal is one sentence for people and an exit code for scripts, whoever wrote it."""

import time

import httpx
import pytest

from cli.ctl.problems import ProblemAnswer, Refusal, WrongField, problem_of, sentence
from cli.terminal.exits import Environment, Failed, Usage
from tests.support.api.scripted_masters import problem


def read(response: httpx.Response, now_s: float = 0.0) -> ProblemAnswer:
    return problem_of(response.status_code, response.headers, response.content, now_s)


def test_every_wrong_field_has_its_line_with_the_hint() -> None:
    said = read(
        problem(
            422, "invalid", "the crawl spec cannot be used",
            errors=[
                {"path": "spec.seeds", "message": "is required", "hint": "give at least one URL"},
                {"path": "", "message": "is empty"},
            ],
        )
    )  # fmt: skip
    assert sentence(said).splitlines() == [
        "the crawl spec cannot be used:",
        "  spec.seeds: is required (give at least one URL)",
        "  is empty",
    ]


def test_a_refused_key_says_how_to_give_another() -> None:
    assert "orb ctl login" in sentence(read(problem(401, "unauthenticated", "the API key is not known")))


def test_our_own_faults_name_the_request() -> None:
    said = sentence(read(problem(503, "unavailable", "the database is away", request_id="r1", hint="wait")))
    assert said == "the database is away (request r1); wait"


@pytest.mark.parametrize(
    ("status", "ending"),
    [(404, Failed), (409, Failed), (412, Failed), (403, Failed), (422, Usage), (400, Usage), (503, Environment)],
)
def test_how_the_command_ends(status: int, ending: type[Exception]) -> None:
    assert type(Refusal(ProblemAnswer(status, "x", "no")).ending()) is ending


@pytest.mark.parametrize(
    "response",
    [
        httpx.Response(502, text="<html>\n<h1>Bad gateway</h1>"),
        httpx.Response(418, content=b"\xff\xfe"),
        httpx.Response(500, json=["x"]),
        httpx.Response(500, json={"errors": [1, {"path": None}], "detail": None, "accepted": "x"}),
        httpx.Response(799),
    ],
)
def test_what_others_than_masters_answer_is_told_as_it_is(response: httpx.Response) -> None:
    said = sentence(read(response))
    assert str(response.status_code) in said
    assert len(said) < 400


@pytest.mark.parametrize("status", [404, 405, 501])
def test_the_page_of_another_server_is_one_sentence(status: int) -> None:
    said = sentence(read(httpx.Response(status, text="\n<!DOCTYPE html>\n<p>Error code explanation")))
    assert said.endswith(", so it is not an Orbweaver API; set another with --server or ORB_SERVER")
    assert "<" not in said


def test_both_forms_of_retry_after_are_understood() -> None:
    def after(value: str) -> float | None:
        return read(problem(503, "x", headers={"Retry-After": value}), now_s=1_700_000_000.0).retry_after_s

    assert after("7") == 7.0
    assert after("Tue, 14 Nov 2023 22:13:30 GMT") == 10.0
    assert after("Tue, 14 Nov 2023 22:00:00 GMT") == 0.0
    assert after("soon") is None
    assert read(problem(503, "x")).retry_after_s is None


def test_retry_after_date_without_a_zone_is_read_as_utc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        said = read(problem(503, "x", headers={"Retry-After": "Tue Nov 14 22:13:30 2023"}), now_s=1_700_000_000.0)
    finally:
        monkeypatch.undo()
        time.tzset()
    assert said.retry_after_s == 10.0


def test_what_the_web_wrote_into_a_refusal_steers_no_terminal() -> None:
    hostile = ProblemAnswer(404, "x", "no \x1b[31mred\x9b \u202eback", errors=(WrongField("a\nb", "\x07", "\x00"),))
    assert sentence(hostile).replace("\n", "").isprintable()
