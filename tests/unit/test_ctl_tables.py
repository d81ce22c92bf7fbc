"""Tables and descriptions fit the terminal, whatever is in them; into a pipe nothing is cut."""

from collections.abc import Mapping, Sequence
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from cli.ctl.cells import Now, dated, length, picked, shown
from cli.ctl.columns import crawl_state
from cli.ctl.resources import CRAWLS, HOSTS, RESOURCES, SCHEDULES, URLS, ResourceKind, named
from cli.ctl.sections import Section, flat, lines_of
from cli.ctl.tables import Column, laid_out, offered
from cli.terminal.exits import Usage
from cli.terminal.printable import printable
from tests.support.api.scripted_masters import NOW, Masters, listing

CRAWL: dict[str, Any] = {
    "name": "docs", "id": 7, "revision": 3, "state": "finished", "finished_reason": "complete",
    "allowed_verbs": ["start"],
    "labels": {"team": "search"}, "spec": {"seeds": [{"url": "https://example.org/"}]}, "active_s": 4210.5,
    "created_at": "2029-12-30T00:04:05Z", "started_at": "2029-12-30T00:04:06Z", "finished_at": "2030-01-02T02:52:05Z",
}  # fmt: skip
LONG = {
    **CRAWL,
    "name": "a-very-long-name-of-a-crawl-of-the-whole-department",
    "state": "running",
    "finished_reason": None,
    "labels": {},
}
URL: dict[str, Any] = {
    "url": "https://example.org/" + "path/" * 30, "host": "example.org", "state": "excluded", "reason": "robots",
    "depth": 3, "attempts": 0, "discovered_from": "https://example.org/", "status": None, "mime": None, "size": None,
    "fetched_at": None, "redirect": None,
}  # fmt: skip


def table(resource: ResourceKind, rows: Sequence[Mapping[str, Any]], width: int, form: Any = "table") -> list[str]:
    columns = offered(resource.columns, wide=form == "wide")
    texts = [[column.cell(row, Now(NOW)) for column in columns] for row in rows]
    layout = laid_out(columns, texts, width or None)
    places = [columns.index(column) for column in layout.columns]
    picked_rows = [layout.titles(), *([row[place] for place in places] for row in texts)]
    return ["".join(text for text, _ in layout.line(row)).rstrip() for row in picked_rows]


def test_crawls_as_people_see_them() -> None:
    assert table(CRAWLS, [CRAWL, LONG], 0) == [
        "NAME                                                 STATE                REVISION  ACTIVE   AGE  LABELS",
        "docs                                                 finished (complete)         3   1h10m  3d3h  team=search",
        "a-very-long-name-of-a-crawl-of-the-whole-department  running                     3   1h10m  3d3h  -",
    ]
    assert table(CRAWLS, [CRAWL, LONG], 80) == [
        "NAME                    STATE                REVISION  ACTIVE   AGE  LABELS",
        "docs                    finished (complete)         3   1h10m  3d3h  team=search",
        "a-very-long-name-of-a…  running                     3   1h10m  3d3h  -",
    ]
    assert table(CRAWLS, [CRAWL, LONG], 40) == [
        "NAME           STATE                 AGE",
        "docs           finished (complete)  3d3h",
        "a-very-long-…  running              3d3h",
    ]


def test_schedule_of_a_later_version_is_shown_as_unreadable() -> None:
    row: dict[str, Any] = {"name": "nightly", "unreadable": "its spec cannot be read", "verb": None, "crawl": "docs"}
    [_, line] = table(SCHEDULES, [row], 80)
    assert line.split()[:4] == ["nightly", "-", "docs", "unreadable"]


def test_urls_keep_their_state_where_it_is_narrow() -> None:
    assert table(URLS, [URL], 50) == [
        "URL                              STATE",
        "https://example.org/path/path/…  excluded (robots)",
    ]


@given(st.lists(st.lists(st.text(max_size=40), min_size=4, max_size=4), max_size=5), st.integers(60, 200))
def test_no_line_is_wider_than_the_terminal(texts: list[list[str]], width: int) -> None:
    columns = [Column(f"C{n}", picked(str(n)), cut=12, rank=n, right=n == 2) for n in range(4)]
    rows = [[shown(text) for text in row] for row in texts]
    layout = laid_out(columns, rows, width)
    places = [columns.index(column) for column in layout.columns]
    for row in rows:
        line = "".join(text for text, _ in layout.line([row[place] for place in places]))
        assert cell_len(line) <= width
    assert columns[0] in layout.columns


def test_columns_go_by_rank_and_what_stays_is_readable() -> None:
    columns = [Column("A", picked("a")), Column("B", picked("b"), rank=1), Column("C", picked("c"), rank=2, cut=12)]
    rows = [["a" * 10, "b" * 10, "c" * 30]]
    assert [column.title for column in laid_out(columns, rows, 10 + 2 + 10 + 2 + 12).columns] == ["A", "B", "C"]
    assert [column.title for column in laid_out(columns, rows, 10 + 2 + 10 + 2 + 12 - 1).columns] == ["A", "B"]
    assert [column.title for column in laid_out(columns, rows, 5).columns] == ["A"]


@given(st.text())
def test_nothing_that_the_web_wrote_steers_a_terminal(text: str) -> None:
    assert printable(text).isprintable()


def test_control_characters_are_written_out() -> None:
    assert printable("a\x1b[2Jb\u202ec\x9bd\tü") == "a\\x1b[2Jb\\u202ec\\x9bd ü"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (59, "59s"), (60, "1m"), (90, "1m30s"), (3600, "1h"), (12_000, "3h20m"), (86_400 * 40 + 7200, "40d")],
)
def test_lengths_of_time_have_two_units_at_most(seconds: float, text: str) -> None:
    assert length(seconds) == text


def test_moments_are_told_from_now() -> None:
    now = Now(NOW)
    assert (now.since("2030-01-02T03:03:05Z"), now.until("2030-01-02T03:03:05Z")) == ("1m", "-")
    assert now.until("2030-01-02T05:04:05+01:00") == "1h"
    assert (now.since(None), now.since("yesterday"), dated(None)) == ("-", "-", "-")
    assert dated("2030-01-02T05:04:05+01:00") == "2030-01-02 04:04:05 UTC"


def test_a_description_wraps_between_words_and_leaves_out_what_is_not_there() -> None:
    body = {"state": "done", "reason": None, "fetch": {"at": "2030-01-02T03:03:05Z", "status": 0}, "chain": ["a", "b"]}
    rows = flat(body, Now(NOW))
    assert rows == [
        ("state", "done"),
        ("fetch.at", "2030-01-02 03:03:05 UTC (1m ago)"),
        ("fetch.status", "0"),
        ("chain", "a"),
        ("", "b"),
    ]
    lines = [text for text, _ in lines_of([Section("url", rows), Section("x", [("why", "word " * 20)])], 45)]
    assert max(map(len, lines)) <= 45
    assert lines[:3] == ["url", "state             done", "fetch.at          2030-01-02 03:03:05 UTC (1m"]


def test_every_kind_has_one_name_and_one_for_many() -> None:
    for resource in RESOURCES:
        assert named(resource.name) is named(resource.one) is resource
    with pytest.raises(Usage, match="expected one of audit, changes, cluster, "):
        named("pods")


def test_forms_for_programs_have_everything_and_nothing_else() -> None:
    masters = Masters(lambda request: listing([CRAWL, LONG]))
    assert masters.run("get", "crawls", form="name") == f"crawl/docs\ncrawl/{LONG['name']}\n"
    assert masters.run("get", "crawls", form="json").count('"name"') == 2
    text = masters.run("get", "crawls", form="wide")
    assert "FINISHED" in text
    assert masters.notes == []


def test_long_lists_are_shown_as_they_come() -> None:
    def pages(request: httpx.Request) -> httpx.Response:
        begin = int(request.url.params.get("cursor", 0))
        hosts = [{"host": f"h{n}.test", "pages": n, "delay_s": 0.5} for n in range(begin, begin + 500)]
        return listing(hosts, str(begin + 500) if begin < 1000 else None)

    lines = Masters(pages).run("get", "hosts").splitlines()
    assert (len(lines), lines[0].split()[0]) == (1501, "HOST")
    assert len({line.split()[0] for line in lines}) == 1501
    assert HOSTS.key == "host"


def test_a_crawl_that_waits_for_room_says_so_beside_its_state() -> None:
    assert crawl_state({"state": "running", "blocking_reason": "the database has ..."}, Now(NOW)) == "running (blocked)"
    assert crawl_state({"state": "running", "blocking_reason": None}, Now(NOW)) == "running"
