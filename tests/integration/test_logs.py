"""Lines of the log: whatever is in one, it is written, and is JSON."""

import json
import subprocess
import sys
from pathlib import Path

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


FULL = """
import os, resource, signal, structlog
from shared.telemetry import configure_logging
configure_logging("info", "json")
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
log = structlog.get_logger("orb")
log.info("before")
resource.setrlimit(resource.RLIMIT_FSIZE, (os.fstat(2).st_size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
for n in range(300):
    log.warning("refused", n=n, fill="x" * 100)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
log.info("after")
print("done")
"""


def test_a_line_that_cannot_be_written_hurts_nobody_and_the_next_one_says_so(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as log:
        done = subprocess.run([sys.executable, "-c", FULL], stdout=subprocess.PIPE, stderr=log, text=True, timeout=30)
    assert (done.returncode, done.stdout) == (0, "done\n")
    written = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert written[0]["event"] == "before"
    assert [(line["event"], line.get("lines")) for line in written[-2:]] == [
        ("log_lines.delayed", 300),
        ("after", None),
    ]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_member_that_cannot_say_why_it_ends_ends_with_its_code() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-m", "orb", "crawl"], stderr=full, timeout=30)
    assert done.returncode == 2
