"""Lines of the log: whatever is in one, it is written, and is JSON."""

import json
import subprocess
import sys

import pytest

SCRIPT = """
import structlog
from shared.telemetry import configure_logging
configure_logging("info", {form!r}, role="master")
class Odd:
    def __repr__(self): return "<odd>"
structlog.get_logger("orb").info("odd.line", value={value})
structlog.get_logger("orb").debug("not.shown")
import logging; logging.getLogger("other").warning("a %s", "word")
"""


def lines(form: str, value: str) -> list[str]:
    script = SCRIPT.format(form=form, value=value)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=30)
    return done.stderr.splitlines()


@pytest.mark.parametrize(
    ("value", "read"),
    [("1.5", 1.5), ("2**80", 2**80), ("'\\udc80'", "\udc80"), ("Odd()", "<odd>"), ("[Odd(), None]", ["<odd>", None]),
     ("{1: 2}", {"1": 2}), ("'a\\nb'", "a\nb")],
)  # fmt: skip
def test_a_line_is_json_whatever_is_in_it(value: str, read: object) -> None:
    first, second = (json.loads(line) for line in lines("json", value))
    assert (first["event"], first["level"], first["role"], first["value"]) == ("odd.line", "info", "master", read)
    assert (second["event"], second["level"]) == ("a word", "warning")
    assert first["timestamp"].endswith("Z")


def test_people_get_text() -> None:
    first, _ = lines("text", "Odd()")
    assert "odd.line" in first
    assert "value=<odd>" in first
