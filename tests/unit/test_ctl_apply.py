"""What `orb ctl apply` and `diff` ask for, in which order, and what they say when something comes between."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from cli.terminal.exits import Environment, Exit, Failed, Usage
from shared.domain.crawl.spec import LABEL_WORDS
from tests.support.api.scripted_masters import Answering, Masters, Say, listing, problem

BROKEN = httpx.ReadError("cut")
STALE = problem(412, "lost-update")
GONE = problem(404, "not-found")
FILES = {
    "1.yaml": "name: nightly\ncrawl: docs\nverb: start\nevery_s: 3600\n---\nname: docs\nspec: {seeds: [https://a.test/]}\n",
    "2.yaml": "host: A.test\nslots: 2\n---\ntarget: b.test\nreason: by mail\n---\nconfig: {log_level: warning}\n",
}


def plan(action: str, **more: Any) -> httpx.Response:
    body = {"action": action, "revision": 2, "state": "seeding", "changes": [], **more}
    return httpx.Response(200, json=body)


def shown(tag: str = "1-1", **body: Any) -> httpx.Response:
    """A resource as a master shows it."""
    return httpx.Response(200, json=body, headers={"ETag": f'"{tag}"'})


@pytest.fixture
def three(tmp_path: Path) -> str:
    file = tmp_path / "crawls.yaml"
    file.write_text("---\n".join(f"name: {name}\nspec: {{seeds: [https://example.org/]}}\n" for name in "abc"))
    return str(file)


@pytest.fixture
def one(tmp_path: Path) -> str:
    file = tmp_path / "a.json"
    file.write_text('{"name": "a", "spec": {}}')
    return str(file)


@pytest.fixture
def folder(tmp_path: Path) -> str:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    return str(tmp_path)


def writes(masters: Masters) -> list[str]:
    """The requests that change something, with their preconditions."""
    changes = []
    for each in masters.asked:
        if each.method != "GET" and not each.url.path.endswith("/plan"):
            held = each.headers.get("if-match") or each.headers.get("if-none-match")
            changes.append(f"{each.method} {each.url.path}" + (f" {held}" if held else ""))
    return changes


# --- the order of requests --------------------------------------------------------------------------------------------


def test_apply_creates_configures_and_leaves_alone(three: str) -> None:
    made = httpx.Response(201, json={"name": "a"})
    changed = httpx.Response(200, json={"name": "b"})
    masters = Masters(
        [GONE, plan("create"), shown("2-3"), plan("update"), shown(), plan("none"), made, changed]
    )  # fmt: skip
    assert masters.run("apply", "-f", three) == "crawl/a created\ncrawl/b configured\ncrawl/c unchanged\n"
    assert writes(masters) == ["POST /v1/crawls", 'PUT /v1/crawls/b "2-3"']
    assert "idempotency-key" in masters.asked[-2].headers


def test_what_others_refer_to_is_applied_first_and_all_is_planned_before(folder: str) -> None:
    def answer(request: httpx.Request) -> Say:
        if request.method == "GET":
            return (
                listing([])
                if request.url.path == "/v1/exclusions"
                else GONE
                if "/v1/config" not in str(request.url)
                else shown("7", revision=7, config={})
            )
        if request.url.path.endswith("/plan"):
            return plan("update" if "config" in request.url.path else "create", warnings=["there is no crawl 'docs'"])
        return httpx.Response(201, json={})

    masters = Masters(answer)
    assert masters.run("apply", "-f", folder).splitlines() == [
        "config configured",
        "exclusion/b.test created",
        "host-policy/a.test created",
        "crawl/docs created",
        "schedule/nightly created",
    ]
    assert writes(masters) == [
        'PUT /v1/config "7"',
        "POST /v1/exclusions",
        "PUT /v1/host-policies/a.test *",
        "POST /v1/crawls",
        "POST /v1/schedules",
    ]
    first = next(at for at, each in enumerate(masters.asked) if each.method == "PUT")
    assert sum(each.url.path.endswith("/plan") for each in masters.asked[:first]) == 5


def test_nothing_is_applied_where_any_is_wrong_and_all_wrong_are_named(three: str) -> None:
    wrong = problem(422, "invalid", "the crawl spec cannot be used", errors=[{"path": "spec.x", "message": "no"}])
    masters = Masters([GONE, plan("create"), GONE, wrong, GONE, wrong])
    with pytest.raises(Usage) as refused:
        masters.run("apply", "-f", three)
    said = str(refused.value)
    for place, name in ((2, "b"), (3, "c")):
        assert f"crawls.yaml, document {place}: crawl {name}: the crawl spec cannot be used:\n  spec.x: no" in said
    assert writes(masters) == []


def test_apply_refuses_invalid_crawl_name_as_create_without_request(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_text('{"name": "a/b", "spec": {}}')
    masters = Masters([])
    with pytest.raises(Usage) as refused:
        masters.run("apply", "-f", str(file))
    said = str(refused.value)
    assert f"a.json: crawl a/b: the request is not valid:\n  name: expected {LABEL_WORDS}, got 'a/b'" in said
    assert "did you mean a-b?" in said
    assert masters.asked == []


def test_a_dry_run_shows_what_would_change_and_changes_nothing(three: str) -> None:
    changes = [
        {"path": "spec.budget.max_pages", "before": 10, "after": 20},
        {"path": "spec.seeds", "before": None, "after": [{"url": f"https://{n}/"} for n in range(7)]},
        {"path": "labels.x", "before": "a\x1b[2J", "after": None},
    ]
    answers = [plan("create"), plan("update", changes=changes), plan("none")]
    masters = Masters(answers)
    assert masters.run("apply", "-f", three, "--dry-run").splitlines() == [
        "crawl/a would be created, seeding",
        "crawl/b would become revision 2, seeding",
        "  - spec.budget.max_pages: 10",
        "  + spec.budget.max_pages: 20",
        "  + spec.seeds: https://0/, https://1/, https://2/, https://3/, https://4/ and 2 more",
        "  - labels.x: a\\x1b[2J",
        "crawl/c would not change",
    ]
    assert {each.url.path.rpartition("/")[2] for each in masters.asked} == {"plan"}
    assert len(json.loads(Masters(answers).run("apply", "-f", three, "--dry-run", form="json"))["items"]) == 3


@pytest.mark.parametrize(
    ("before", "after", "lines"),
    [
        (["a", "b", "c"], ["a", "c", "d"], ["- x: b", "+ x: d"]),
        (["a", "b"], ["b", "a"], ["- x: a, b", "+ x: b, a"]),
        (["a", "a"], ["a"], ["- x: a"]),
        ([], ["a"], ["+ x: a"]),
        ([{"url": "u"}, {"url": "v"}], [{"url": "u"}], ["- x: v"]),
        ([{"url": "u", "priority": 1}], [{"url": "u"}], ["- x: url=u,priority=1", "+ x: url=u"]),
        (3, [1], ["- x: 3", "+ x: 1"]),
        ({"a": [1]}, None, ["- x: a=1"]),
    ],
)
def test_lists_are_compared_by_what_comes_and_goes(one: str, before: Any, after: Any, lines: list[str]) -> None:
    change = {"path": "x", "before": before, "after": after}
    masters = Masters([plan("update", changes=[change])])
    assert masters.run("diff", "-f", one).splitlines() == ["crawl/a differs", *(f"  {line}" for line in lines)]
    assert masters.code == Exit.DIFFERENT


def test_programs_get_json_also_of_what_was_not_changed_or_is_gone(three: str) -> None:
    masters = Masters(
        lambda request: plan("none") if request.method == "POST" else httpx.Response(200, json={"name": "a"})
    )
    out = masters.run("apply", "-f", three, form="json")
    assert [json.loads(each) for each in out.replace("}\n{", "}\0{").split("\0")] == [{"name": "a"}] * 3
    gone = Masters([httpx.Response(204)]).run("delete", "crawl", "docs", form="json")
    assert json.loads(gone) == {"name": "crawl/docs", "done": "deleted"}


# --- what comes between -----------------------------------------------------------------------------------------------


def test_an_apply_whose_answer_was_lost_still_says_what_it_did(one: str) -> None:
    made = httpx.Response(201, json={"name": "a"})
    masters = Masters([GONE, plan("create"), BROKEN, made], count=2)
    assert masters.run("apply", "-f", one) == "crawl/a created\n"
    lost, again = masters.asked[2:]
    assert lost.headers["idempotency-key"] == again.headers["idempotency-key"]
    masters = Masters([shown("1-1"), plan("update"), BROKEN, STALE, shown("1-2"), plan("none")], count=2)
    assert masters.run("apply", "-f", one) == "crawl/a configured\n"


def test_state_that_moves_on_is_no_conflict_but_a_changed_declaration_is(one: str) -> None:
    running = shown("1-1", spec={"x": 1}, labels={}, desired=None, state="running")
    finished = shown("1-2", spec={"x": 1}, labels={}, desired=None, state="finished")
    masters = Masters([running, plan("update"), STALE, finished, plan("update"), httpx.Response(200, json={})])
    assert masters.run("apply", "-f", one) == "crawl/a configured\n"
    assert writes(masters) == ['PUT /v1/crawls/a "1-1"', 'PUT /v1/crawls/a "1-2"']

    labelled = shown("1-2", spec={"x": 1}, labels={"by": "another"}, desired=None, state="running")
    masters = Masters([running, plan("update"), STALE, labelled, plan("update")])
    with pytest.raises(Failed, match=r"a\.json: crawl/a was changed by another client .* is left as it is"):
        masters.run("apply", "-f", one)
    assert writes(masters) == ['PUT /v1/crawls/a "1-1"']

    masters = Masters([running, plan("update"), STALE, GONE, plan("create")])
    with pytest.raises(Failed, match=r"crawl/a was deleted by another client"):
        masters.run("apply", "-f", one)


def test_of_two_that_create_the_second_overwrites_nothing(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text("host: a.test\nslots: 2\n")
    others = shown("host-policy-1", host="a.test", slots=9)
    masters = Masters([GONE, plan("create"), STALE, others, plan("update")])
    with pytest.raises(Failed, match=r"host-policy/a\.test was changed by another client"):
        masters.run("apply", "-f", str(file))
    assert writes(masters) == ["PUT /v1/host-policies/a.test *"]
    masters = Masters([GONE, plan("create"), STALE, others, plan("none")])
    assert masters.run("apply", "-f", str(file)) == "host-policy/a.test unchanged\n", "both wanted the same"


@pytest.mark.parametrize(
    ("fault", "ending"), [(httpx.ConnectError("refused"), Environment), (problem(409, "full", "too many"), Failed)]
)
def test_apply_that_stops_half_way_says_what_is_done_and_what_is_not(
    three: str, fault: Say, ending: type[Exception], capsys: pytest.CaptureFixture[str]
) -> None:
    masters = Masters([GONE, plan("create")] * 3 + [httpx.Response(201, json={}), fault])
    with pytest.raises(ending) as failed:
        masters.run("apply", "-f", three)
    told = capsys.readouterr().err
    assert told == "orb: 1 of 3 are done; not done: crawl/b, crawl/c; repeat the command to continue\n"
    if ending is Failed:
        assert str(failed.value).startswith(f"{three}, document 2: crawl b: too many")
    repeated = Masters([shown(), plan("none"), *[GONE, plan("create")] * 2, *[httpx.Response(201, json={})] * 2])
    assert repeated.run("apply", "-f", three) == "crawl/a unchanged\ncrawl/b created\ncrawl/c created\n"


def test_changes_of_others_that_never_stop_end_the_command(one: str) -> None:
    endless = Masters(
        lambda request: (
            shown() if request.method == "GET" else (plan("update") if request.url.path.endswith("/plan") else STALE)
        )
    )
    with pytest.raises(Failed, match="crawl/a is changed by other clients all the time"):
        endless.run("apply", "-f", one)
    assert len(writes(endless)) == 5


# --- references -------------------------------------------------------------------------------------------------------


def test_schedule_is_refused_before_any_change_if_its_crawl_would_refuse_it(tmp_path: Path) -> None:
    schedule = "name: s\ncrawl: {crawl}\nverb: start\nevery_s: 60\n"
    crawl = "---\nname: docs\ndesired: running\nspec: {seeds: [https://a.test/]}\n"
    file = tmp_path / "x.yaml"
    for name, words in (("docs", "declares `desired: running`"), ("none", "there is no crawl 'none'")):
        file.write_text(schedule.format(crawl=name) + crawl)
        masters = Masters(
            [GONE, plan("create"), GONE, plan("create", warnings=[f"there is no crawl {name!r}: create it"])]
        )
        with pytest.raises(Usage) as refused:
            masters.run("apply", "-f", str(file))
        said = str(refused.value)
        assert f"{file}: schedule s: the schedule cannot be used:\n  " in said
        assert words in said
        assert writes(masters) == []


# --- diff and prune ---------------------------------------------------------------------------------------------------

OLD: dict[str, Any] = {"name": "old", "state": "running", "labels": {"team": "x", "more": "y"}}
SCHEDULES: list[dict[str, Any]] = [
    {"name": "by-crawl", "crawl": "old", "selector": {}},
    {"name": "by-selector", "crawl": None, "selector": {"team": "x"}},
    {"name": "other", "crawl": "other", "selector": {}},
    {"name": "wider", "crawl": None, "selector": {"more": "y"}},
]


SETS: list[dict[str, Any]] = [{"name": "partners", "count": 2}]


def cluster(crawls: Sequence[dict[str, Any]] = (OLD,), refused: Sequence[Say] = ()) -> Answering:
    """Answers of a cluster with these crawls, the schedules above, and the sets above of the crawl `old`.

    Deletions are refused as given.
    """
    left = iter(refused)

    def answer(request: httpx.Request) -> Say:
        *_, kind, name = request.url.path.split("/")
        match request.method:
            case "POST":
                return plan("none")
            case "DELETE":
                return next(left, httpx.Response(204))
            case _ if name == "crawls":
                assert request.url.params.get_list("label") == ["team=x"]
                return listing(crawls)
            case _ if name == "schedules":
                return listing(SCHEDULES)
            case _ if name == "seed-sets":
                assert request.url.path == "/v1/crawls/old/seed-sets"
                return listing(SETS)
        known = crawls if kind == "crawls" else SETS if kind == "seed-sets" else SCHEDULES
        return next((shown("7-7", **each) for each in known if each["name"] == name), GONE)

    return answer


def test_prune_deletes_what_has_the_label_in_the_order_of_references(
    one: str, capsys: pytest.CaptureFixture[str]
) -> None:
    masters = Masters(cluster())
    said = masters.run("apply", "-f", one, "--prune", "-l", "team=x", "--yes")
    assert said.splitlines() == [
        "crawl/a unchanged",
        "schedule/by-crawl deleted",
        "schedule/by-selector deleted",
        "seed-set/old/partners deleted",
        "crawl/old deleted",
    ]
    assert writes(masters) == [
        'DELETE /v1/schedules/by-crawl "7-7"',
        'DELETE /v1/schedules/by-selector "7-7"',
        'DELETE /v1/crawls/old/seed-sets/partners "7-7"',
        'DELETE /v1/crawls/old "7-7"',
    ]
    told = capsys.readouterr().err
    assert "leaves these kinds alone, since they have no labels: config, exclusion, host-policy, api-key\n" in told
    assert "seed-set/old/partners would be deleted: its seeds are withdrawn, unless another set" in told
    assert "crawl/old would be deleted: it is running and stops; its URLs, items and counters are deleted" in told


def test_prune_without_yes_asks_at_a_terminal_only(one: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal:
        def __init__(self, line: str) -> None:
            self.readline = lambda: line

        def isatty(self) -> bool:
            return True

    words = ("apply", "-f", one, "--prune", "-l", "team=x")
    masters = Masters(cluster())
    with pytest.raises(Usage, match="there is no terminal: set --yes"):
        masters.run(*words)
    assert writes(masters) == []
    for line, deletes in (("\n", False), ("n\n", False), ("", False), ("y\n", True), ("YES\n", True)):
        masters = Masters(cluster())
        monkeypatch.setattr("sys.stdin", Terminal(line))
        if not deletes:
            with pytest.raises(Failed, match="nothing was changed"):
                masters.run(*words)
        else:
            masters.run(*words)
        assert (writes(masters) != []) is deletes


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--prune",), "--prune needs -l"),
        (("-l", "team=x"), "-l is for --prune"),
        (("--prune", "-l", "team"), "is not written as NAME=VALUE"),
        (("--prune", "-l", "=x"), "is not written as NAME=VALUE"),
        (("--prune", "-l", "team=x", "-l", "team=y"), "the label team is given two values"),
    ],
)
def test_prune_without_a_label_is_refused(one: str, words: tuple[str, ...], why: str) -> None:
    masters = Masters([])
    with pytest.raises(Usage, match=why):
        masters.run("apply", "-f", one, *words)
    assert masters.asked == []


@pytest.mark.parametrize(("title", "path"), [("crawl/old", "old"), ("seed-set/old/partners", "old/seed-sets/partners")])
def test_resource_that_loses_its_label_before_the_deletion_is_kept(one: str, title: str, path: str) -> None:
    crawls = [dict(OLD)]
    answering = cluster(crawls)

    def answer(request: httpx.Request) -> Say:
        if request.method == "DELETE" and request.url.path.endswith(path):
            crawls[0] = OLD | {"labels": {}}
            return STALE
        return answering(request)

    masters = Masters(answer)
    said = masters.run("apply", "-f", one, "--prune", "-l", "team=x", "--yes")
    assert f"{title} kept: it does not carry the label any more\n" in said
    assert writes(masters).count(f'DELETE /v1/crawls/{path} "7-7"') == 1


def test_crawl_that_only_moved_on_is_deleted_at_its_present_version(one: str) -> None:
    masters = Masters(cluster(refused=[STALE, STALE]))
    said = masters.run("apply", "-f", one, "--prune", "-l", "team=x", "--yes")
    assert "schedule/by-crawl deleted\n" in said
    assert writes(masters).count('DELETE /v1/schedules/by-crawl "7-7"') == 3


@pytest.mark.parametrize(
    "text",
    [
        "name: by-crawl\ncrawl: old\nverb: start\nevery_s: 60\n",
        "kind: seed-set\nname: partners\ncrawl: old\nseeds: []\n",
    ],
)
def test_prune_refuses_to_delete_the_crawl_of_what_stays(tmp_path: Path, text: str) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(text)
    answering = cluster()
    masters = Masters(lambda asked: plan("update") if asked.method == "POST" else answering(asked))
    with pytest.raises(Usage, match="crawl: names the crawl 'old', which --prune deletes"):
        masters.run("apply", "-f", str(file), "--prune", "-l", "team=x", "--yes")
    assert writes(masters) == []


def test_diff_ends_with_one_only_for_a_difference(one: str) -> None:
    masters = Masters([plan("none")])
    assert (masters.run("diff", "-f", one), masters.code) == ("", Exit.OK)
    masters = Masters([plan("create")])
    assert (masters.run("diff", "-f", one), masters.code) == ("crawl/a is only in the files\n", Exit.DIFFERENT)
    masters = Masters(cluster())
    said = masters.run("diff", "-f", one, "-l", "team=x")
    assert (said.splitlines()[-1], masters.code) == ("crawl/old is only in the cluster", Exit.DIFFERENT)
    items = json.loads(Masters(cluster()).run("diff", "-f", one, "-l", "team=x", form="json"))["items"]
    assert [(each["kind"], each["name"], each["action"]) for each in items] == [
        ("schedule", "by-crawl", "delete"),
        ("schedule", "by-selector", "delete"),
        ("seed-set", "old/partners", "delete"),
        ("crawl", "old", "delete"),
    ]
    for status, kind in ((401, "unauthenticated"), (403, "forbidden")):
        with pytest.raises(Usage):
            Masters([problem(status, kind)]).run("diff", "-f", one)
