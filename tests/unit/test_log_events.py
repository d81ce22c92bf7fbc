"""docs/logs.md lists the log events of the product, neither more nor fewer, as the code has them."""

import re

from tests.support.log_events import FORM, PAGE, PROCESSES, ROOT, rewritten, rows_of_code, rows_of_page


def test_log_events_and_page_list_the_same() -> None:
    page = {row.event for row in rows_of_page(PAGE.read_text("utf-8"))}
    code = {row.event for row in rows_of_code()}
    assert len(code) > 150
    assert (code - page, page - code) == (set(), set()), "run `.venv/bin/python -m tests.support.log_events`"


def test_log_events_have_the_level_and_fields_of_the_page() -> None:
    text = PAGE.read_text("utf-8")
    assert [row.facts for row in rows_of_page(text)] == [row.facts for row in rows_of_code()]
    assert rewritten(text) == text, "run `.venv/bin/python -m tests.support.log_events`"


def test_log_events_are_a_noun_and_a_past_participle() -> None:
    assert [row.event for row in rows_of_code() if not FORM.fullmatch(row.event)] == []


def test_log_events_have_a_meaning_and_an_action() -> None:
    unexplained = [row.event for row in rows_of_page(PAGE.read_text("utf-8")) if not (row.meaning and row.action)]
    assert unexplained == []


def test_loggers_are_found_by_their_name() -> None:
    """An event of a logger with another name would not be listed."""
    sources = [path.read_text("utf-8") for package in PROCESSES for path in (ROOT / package).rglob("*.py")]
    made = sum(source.count("structlog.get_logger(") for source in sources)
    named = sum(len(re.findall(r"^log = structlog\.get_logger\(", source, re.MULTILINE)) for source in sources)
    assert made == named > 60
