"""What each verb asks for: once in effect, whatever happens to its answers; and what it says of it."""

import argparse
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import httpx
import msgspec
import pytest
import yaml

from cli.ctl.admin import remarked, with_values
from cli.ctl.client import path
from cli.ctl.command import configure
from cli.ctl.output import CtlOutput
from cli.ctl.resources import RESOURCES
from cli.terminal.exits import Exit, Failed, Usage
from shared.domain.crawl.spec import LABEL_WORDS
from shared.domain.ops.config import HotConfig
from tests.support.api.scripted_masters import Masters, Say, problem

BROKEN = httpx.ReadError("cut")
STALE = problem(412, "lost-update")


def crawl(state: str, tag: str = "1-1", crawl_id: int = 1, reason: str | None = None, end: int = 1) -> httpx.Response:
    finished_at = f"2030-01-0{end}T00:00:00Z" if state == "finished" else None
    body = {"name": "docs", "id": crawl_id, "revision": 1, "state": state, "finished_reason": reason}
    body |= {"finished_at": finished_at}
    return httpx.Response(200, json=body, headers={"ETag": f'"{tag}"'})


def turned(state: str, command: str | None = None) -> httpx.Response:
    return httpx.Response(200, json={"crawl": {"name": "docs", "state": state}, "command": command})


@pytest.mark.parametrize("form", ["json", "yaml"])
def test_a_list_that_is_refused_leaves_nothing_on_stdout(form: str) -> None:
    def refused() -> Iterator[dict[str, Any]]:
        yield from ()
        raise Failed("this needs the role admin")

    out, keys = io.StringIO(), next(resource for resource in RESOURCES if resource.name == "keys")
    with pytest.raises(Failed):
        CtlOutput(form, out=out).items(keys, refused())
    assert out.getvalue() == ""
    assert CtlOutput(form, out=out).items(keys, []) == 0
    assert yaml.safe_load(out.getvalue())["items"] == []


@pytest.mark.parametrize("name", ["a/b", "..", ".", ""])
def test_name_that_would_change_the_path_is_refused_before_any_request(name: str) -> None:
    for words in (("get", "crawl", name), ("pause", name), ("get", "urls", "--crawl", name), ("delete", "crawl", name)):
        masters = Masters([])
        with pytest.raises(Usage) as refused:
            masters.run(*words)
        assert f"{name!r} is not a valid name: the name of a crawl is {LABEL_WORDS}" in str(refused.value)
        assert masters.asked == []


@pytest.mark.parametrize(
    "words",
    [
        ("hosts", "delay", "{}", "3"),
        ("hosts", "block", "{}", "--reason", "x"),
        ("hosts", "unblock", "{}"),
        ("get", "host", "{}"),
        ("get", "host-policy", "{}"),
        ("delete", "host-policy", "{}"),
    ],
)
@pytest.mark.parametrize(
    ("given", "host"),
    [
        ("http://127.0.0.4:18080/", "127.0.0.4:18080"),
        ("HTTPS://A.Test/x", "a.test"),
        ("a.test/", "a.test"),
        ("//", "example.org:8080"),
    ],
)
def test_url_in_place_of_a_host_is_refused_with_its_host(words: tuple[str, ...], given: str, host: str) -> None:
    masters = Masters([])
    with pytest.raises(Usage) as refused:
        masters.run(*(word.format(given) for word in words))
    assert str(refused.value) == f"{given!r} is not a host: write the host without scheme and path, as `{host}`."
    assert masters.asked == []


def test_word_for_one_resource_is_no_cut_plural() -> None:
    with pytest.raises(Usage, match="the name of a host-policy is no empty text"):
        path("host-policies", "")


@pytest.mark.parametrize("words", [("--key", "K", "get", "crawls"), ("get", "crawls", "--key", "K")])
def test_options_stand_before_the_verb_or_behind_it(words: tuple[str, ...]) -> None:
    parser = argparse.ArgumentParser()
    configure(parser)
    both = parser.parse_args(["-o", "json", *words])
    assert (both.key, both.output, both.server) == ("K", "json", None)
    assert parser.parse_args(["--key", "A", "get", "crawls", "--key", "B"]).key == "B"


def test_what_nobody_turned_is_shown_with_what_holds_instead() -> None:
    """Whatever may be turned has its remark, and what is shown can be put again."""
    parts = {name: getattr(HotConfig(), name) for name in HotConfig.__struct_fields__}
    config: dict[str, Any] = {
        name: dict.fromkeys(part.__struct_fields__) if isinstance(part, msgspec.Struct) else None
        for name, part in parts.items()
    }
    config["pools"] = {"yes": {"max_visits": 8, "report_s": None}}
    config["storage"]["high_watermark_ratio"] = 0.5
    said = remarked(config)
    assert yaml.safe_load(said) == config
    assert [line for line in said.splitlines() if line.endswith("null")] == []
    for line in (
        "log_level: null  # as each was started; info by default",
        "  max_visits: null  # as each was started; 1024 by default",
        "  high_watermark_ratio: 0.5",
        "  low_watermark_ratio: null  # 0.9 by default, at most high_watermark_ratio",
        "    report_s: null  # as for all workers",
    ):
        assert line in said.splitlines()


@pytest.mark.parametrize("form", ["table", "json"])
def test_changes_that_are_deleted_are_named_beside_those_that_are_kept(
    form: Literal["table", "json"], capsys: pytest.CaptureFixture[str]
) -> None:
    until = "2029-01-01T08:12:30Z"
    change = {"kind": "new", "at": "2030-01-01T08:12:30Z", "page": "1-a", "url": "http://a.test/", "version": 1}
    first = {"items": [change], "next": "c", "gap": {"reason": "expired", "deleted_until": until}}
    second = {"items": [change], "next": None, "gap": None}
    masters = Masters([httpx.Response(200, json=first), httpx.Response(200, json=second)])
    shown = masters.run("get", "changes", "--crawl", "docs", form=form)
    assert shown.count("http://a.test/") == 2
    assert capsys.readouterr().err == f"orb: the changes up to {until} are deleted (retention.changes_days)\n"


@pytest.mark.parametrize(("headers", "said"), [({"X-Orb-Deleted-Until": "2029"}, "up to 2029 are deleted"), ({}, "")])
def test_export_of_changes_names_those_that_are_deleted(
    headers: dict[str, str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    masters = Masters([httpx.Response(200, content=b"{}", headers=headers)])
    masters.run("export", "changes", "docs", "--out", str(tmp_path / "changes.jsonl"))
    told = capsys.readouterr().err
    assert said in told
    assert ("deleted" in told) is bool(said)


# --- verbs of crawls --------------------------------------------------------------------------------------------------


def test_a_verb_names_the_version_it_was_meant_for() -> None:
    masters = Masters([crawl("running"), turned("paused")])
    assert masters.run("pause", "docs") == "crawl/docs paused\n"
    assert masters.told == ["m1 GET /v1/crawls/docs", "m1 POST /v1/crawls/docs/pause"]
    assert masters.asked[1].headers["if-match"] == '"1-1"'


@pytest.mark.parametrize(
    ("verb", "before", "now"),
    [
        ("pause", crawl("running"), crawl("paused", "1-2")),
        ("start", crawl("finished"), crawl("seeding", "1-2")),
        ("start", crawl("finished"), crawl("finished", "1-2", end=2)),
        ("start", crawl("finished"), crawl("paused", "1-2")),
        ("refresh", crawl("finished"), crawl("finished", "1-2", reason="refreshed", end=2)),
        ("resume", crawl("paused"), crawl("running", "1-2")),
        ("cancel", crawl("running"), crawl("finished", "1-2", reason="cancelled")),
        ("reset", crawl("running"), crawl("seeding", "2-1", crawl_id=2)),
    ],
)
@pytest.mark.parametrize("refused", [STALE, problem(409, "illegal-transition")])
def test_verb_with_lost_answer_is_found_done_and_not_repeated(
    verb: str, before: httpx.Response, now: httpx.Response, refused: httpx.Response
) -> None:
    masters = Masters([before, BROKEN, refused, now], count=2)
    assert masters.run(verb, "docs").startswith("crawl/docs ")
    assert [each.method for each in masters.asked] == ["GET", "POST", "POST", "GET"]
    assert {each.headers["if-match"] for each in masters.asked if each.method == "POST"} == {'"1-1"'}


@pytest.mark.parametrize("state", ["running", "finished"])
def test_retry_failed_with_lost_answer_is_not_sent_again(state: str) -> None:
    masters = Masters([crawl(state), BROKEN, STALE, crawl("running", "1-2")], count=2)
    with pytest.raises(Failed, match=r"may be queued already\. `orb ctl get urls -c docs --state failed` lists"):
        masters.run("retry-failed", "docs")
    assert {each.headers["if-match"] for each in masters.asked if each.method == "POST"} == {'"1-1"'}


def test_start_with_lost_answer_is_sent_again_if_it_was_not_applied() -> None:
    there = crawl("finished", "1-2", reason="complete")
    masters = Masters([crawl("finished"), BROKEN, STALE, there, there, turned("seeding")], count=2)
    assert masters.run("start", "docs") == "crawl/docs started again\n"
    assert masters.asked[-1].headers["if-match"] == '"1-2"'


def test_a_change_in_between_is_no_reason_to_give_up_a_verb() -> None:
    masters = Masters([crawl("running"), STALE, crawl("running", "1-2"), turned("paused")])
    assert masters.run("pause", "docs") == "crawl/docs paused\n"
    assert masters.asked[3].headers["if-match"] == '"1-2"'


def test_a_state_that_does_not_allow_a_verb_is_told_with_what_it_allows() -> None:
    illegal = problem(409, "illegal-transition", "a crawl that is running cannot be resumed", hint="allowed now: pause")
    with pytest.raises(Failed, match="cannot be resumed; allowed now: pause"):
        Masters([crawl("running"), illegal]).run("resume", "docs")


@pytest.mark.parametrize(
    ("before", "said"),
    [
        (crawl("finished", reason="complete"), "crawl docs was complete: it fetches queued URLs and new seeds"),
        (crawl("finished", reason="max_pages"), "had used up its budget.max_pages: it finishes again at once unless"),
        (crawl("finished", reason="cancelled"), ""),
        (crawl("created"), ""),
    ],
)
def test_a_crawl_that_is_started_again_and_may_find_nothing_to_do_says_so(
    before: httpx.Response, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    again = " again" if before.json()["state"] == "finished" else ""
    assert Masters([before, turned("seeding")]).run("start", "docs") == f"crawl/docs started{again}\n"
    told = capsys.readouterr().err
    assert said in told
    assert bool(told) == bool(said)
    Masters([before, turned("seeding")]).run("start", "docs", form="json")
    assert capsys.readouterr().err == ""


def test_programs_get_the_answer_and_people_are_told_how_to_wait(capsys: pytest.CaptureFixture[str]) -> None:
    answer = turned("running", "retry-1")
    assert json.loads(Masters([crawl("running"), answer]).run("retry-failed", "docs", form="json"))["command"]
    assert Masters([crawl("running"), answer]).run("retry-failed", "docs", form="name") == "crawl/docs\n"
    assert capsys.readouterr().err == ""
    Masters([crawl("running"), answer]).run("retry-failed", "docs")
    assert "orb ctl wait command retry-1" in capsys.readouterr().err


# --- wait -------------------------------------------------------------------------------------------------------------


def test_waiting_ends_when_it_is_so_also_across_an_outage(capsys: pytest.CaptureFixture[str]) -> None:
    said: list[Say] = [crawl("seeding"), crawl("running"), httpx.ConnectError("away"), crawl("running"), BROKEN]
    masters = Masters([*said, crawl("finished", reason="complete")])
    assert masters.run("wait", "crawl", "docs") == "crawl/docs finished\n"
    told = capsys.readouterr().err.splitlines()
    assert [line for line in told if "is seeding" in line] == ["orb: crawl docs: is seeding"]
    assert any("no master answers" in line for line in told)


def test_waiting_has_a_limit_and_what_is_gone_ends_it() -> None:
    masters = Masters(lambda request: crawl("running"))
    with pytest.raises(Failed, match="not state=finished after 5 s: is running"):
        masters.run("wait", "crawl", "docs", "--timeout", "5")
    assert 3 <= masters.now <= 5
    gone = problem(404, "not-found")
    with pytest.raises(Failed):
        Masters([crawl("running"), gone]).run("wait", "crawl", "docs")
    assert Masters([crawl("running"), gone]).run("wait", "crawl", "docs", "--for", "deleted") == "crawl/docs deleted\n"


def test_commands_and_members_can_be_waited_for() -> None:
    def applied(count: int) -> httpx.Response:
        return httpx.Response(200, json={"id": "c", "applied": count, "partitions": 4})

    assert Masters([applied(1), applied(4)]).run("wait", "command", "c") == "command/c applied\n"
    with pytest.raises(Failed, match="no command"):
        Masters([applied(1), problem(404, "not-found", "there is no command 'c'")]).run("wait", "command", "c")
    worker = [httpx.Response(200, json={"id": "w1", "state": state}) for state in ("active", "draining", "drained")]
    assert Masters(worker).run("wait", "worker", "w1") == "worker/w1 drained\n"
    with pytest.raises(Usage, match="expected for a worker one of drained, stopped"):
        Masters([]).run("wait", "worker", "w1", "--for", "state=finished")


def test_exclusion_for_too_long_a_time_is_refused() -> None:
    with pytest.raises(Usage, match=r"is too long\. Without --for"):
        Masters([]).run("exclude", "a.test", "--reason", "asked by mail", "--for", "999999999d")


# --- creating and deleting --------------------------------------------------------------------------------------------


def test_create_is_repeatable_and_takes_a_specs_flags() -> None:
    made = httpx.Response(201, json={"name": "docs"})
    masters = Masters([BROKEN, made], count=2)
    out = masters.run("create", "docs", "example.org", "http://b.test/", "--max-pages", "7", "--no-start")
    assert out == "crawl/docs created\n"
    first, second = masters.asked
    assert first.headers["idempotency-key"] == second.headers["idempotency-key"]
    assert json.loads(first.content) == {
        "name": "docs",
        "spec": {"seeds": ["https://example.org", "http://b.test/"], "budget": {"max_pages": 7}},
        "start": False,
    }


def test_create_refuses_an_option_in_the_place_of_a_url() -> None:
    masters = Masters([])
    with pytest.raises(Usage, match="is in the place of a URL"):
        masters.run("create", "docs", "--", "--json")
    assert masters.asked == []


def test_delete_is_done_when_the_answer_to_the_first_try_was_lost() -> None:
    missing = problem(404, "not-found", "there is no crawl 'docs'")
    assert Masters([BROKEN, missing], count=2).run("delete", "crawl", "docs") == "crawl/docs deleted\n"
    with pytest.raises(Failed):
        Masters([missing]).run("delete", "crawl", "docs")
    assert Masters([missing]).run("delete", "crawls", "docs", "--ignore-missing") == "crawl/docs not found\n"
    with pytest.raises(
        Usage, match="expected one of crawl, exclusion, schedule, host-policy, seed-set, key, dead-letter"
    ):
        Masters([]).run("delete", "host", "a.test")


# --- tending ----------------------------------------------------------------------------------------------------------


def config(revision: int, **values: Any) -> httpx.Response:
    body = {"revision": revision, "changed_at": None, "changed_by": None, "config": values}
    return httpx.Response(200, json=body, headers={"ETag": f'"{revision}"'})


def test_set_changes_single_values_also_under_concurrent_changes() -> None:
    masters = Masters([config(1, worker={"max_visits": 8}), STALE, config(2, log_level="debug"), config(3)])
    assert masters.run("config", "set", "worker.max_visits=64", "master.grant_s=null") == "config/3 configured\n"
    sent = [json.loads(each.content) for each in masters.asked if each.method == "PUT"]
    assert sent == [
        {"worker": {"max_visits": 64}, "master": {"grant_s": None}},
        {"log_level": "debug", "worker": {"max_visits": 64}, "master": {"grant_s": None}},
    ]
    assert [each.headers.get("if-match") for each in masters.asked] == [None, '"1"', None, '"2"']


def test_new_policy_with_lost_answer_is_read_again_and_not_lost() -> None:
    nothing, block = problem(404, "not-found"), {"reason": "x"}
    policy = {"host": "a.test", "delay_s": None, "block": block, "slots": None}
    mine = httpx.Response(200, json=policy, headers={"ETag": '"1"'})
    masters = Masters([nothing, BROKEN, STALE, mine, mine], count=2)
    said = masters.run("hosts", "block", "a.test", "--reason", "x")
    assert said == "host/a.test is blocked until it is unblocked\n"
    puts = [each for each in masters.asked if each.method == "PUT"]
    assert [json.loads(each.content) for each in puts] == [{"block": block}] * 3
    conditions = [(each.headers.get("if-none-match"), each.headers.get("if-match")) for each in puts]
    assert conditions == [("*", None), ("*", None), (None, '"1"')]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("get", "crawls", "-l", "team=x", "-l", "team=y"), "-l team=y: the label team is given two values"),
        (("get", "crawls", "-l", "team"), "-l team is not written as NAME=VALUE"),
        (
            ("config", "set", "worker.max_visits=1", "worker.max_visits=2"),
            r"worker\.max_visits=2: the setting worker\.max_visits is given two values",
        ),
    ],
)
def test_name_with_two_values_is_a_usage_error(words: tuple[str, ...], why: str) -> None:
    masters = Masters([])
    with pytest.raises(Usage, match=why):
        masters.run(*words)
    assert masters.asked == []


def test_a_whole_configuration_replaces_only_the_one_that_was_there(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("worker: {max_visits: 9}")
    masters = Masters([config(1), STALE])
    with pytest.raises(Failed):
        masters.run("config", "put", "-f", str(file))
    assert len(masters.asked) == 2
    assert Masters([config(1), config(1)]).run("config", "put", "-f", str(file)) == "config/1 unchanged\n"


def test_values_are_set_at_their_paths_and_nothing_else_changes() -> None:
    before = {"a": {"b": 1, "c": 2}, "d": 3}
    assert with_values(before, [(["a", "b"], 9), (["e", "f"], [1]), (["d", "x"], 1)]) == {
        "a": {"b": 9, "c": 2}, "d": {"x": 1}, "e": {"f": [1]},
    }  # fmt: skip
    assert before == {"a": {"b": 1, "c": 2}, "d": 3}


def test_dead_letters_are_replayed_one_by_one_or_all_of_a_crawl() -> None:
    asked = httpx.Response(202, json={"command": "replay-1"})
    masters = Masters([asked, asked, asked])
    masters.run("dead-letters", "replay", "7", "8")
    masters.run("dead-letters", "replay", "-c", "docs")
    assert masters.told == [
        "m1 POST /v1/dead-letters/7/replay",
        "m1 POST /v1/dead-letters/8/replay",
        "m1 POST /v1/dead-letters/replay?crawl=docs",
    ]
    with pytest.raises(Usage):
        Masters([]).run("dead-letters", "discard")


def test_filters_that_mean_nothing_are_told_before_anything_is_asked() -> None:
    for argv in (
        ("get", "crawls", "--host", "a.test"),
        ("get", "crawls", "docs", "--state", "running"),
        ("get", "urls"),
        ("get", "workers", "-c", "docs"),
        ("get", "host", "a.test", "-c", "docs"),
        ("describe", "crawl"),
    ):
        with pytest.raises(Usage):
            Masters([]).run(*argv)


def test_a_seed_upload_in_which_nothing_was_taken_has_failed() -> None:
    report = {"lines": 1, "accepted": 0, "duplicate": 0, "rejected": 1, "durable_lines": 1,
              "first_rejected": [{"line": 1, "url": "x\x1b", "reason": "it is no URL"}]}  # fmt: skip
    masters = Masters([httpx.Response(200, json=report)])
    masters.run("seeds", "add", "docs", "x\x1b")
    assert masters.code == Exit.FAILED


def test_the_documentation_has_every_verb_and_kind() -> None:
    parser = argparse.ArgumentParser()
    configure(parser)
    [verbs] = [each for each in parser._actions if isinstance(each, argparse._SubParsersAction)]
    text = (Path(__file__).resolve().parents[2] / "docs" / "ctl.md").read_text("utf-8")
    for word in (*verbs.choices, *(resource.name for resource in RESOURCES)):
        assert re.search(rf"`{word}\b", text), f"docs/ctl.md does not tell of {word}"


def test_wait_says_once_that_no_master_answers(capsys: pytest.CaptureFixture[str]) -> None:
    """Which of two masters is asked first changes from look to look."""
    dead = httpx.ConnectError("Connection refused")
    masters = Masters([*[dead] * 12, crawl("running"), *[dead] * 6, crawl("finished")], count=2)
    assert masters.run("wait", "crawl", "docs") == "crawl/docs finished\n"
    said = capsys.readouterr().err.splitlines()
    assert [line.partition("docs: ")[2][:16] for line in said] == ["no master answer", "is running", "no master answer"]
    assert "http://m1 (Connection refused); http://m2 (Connection refused)" in said[0]
