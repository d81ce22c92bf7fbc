"""The log level of a running process changes for all of its loggers."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


_LOGGING = """
import logging, structlog
from shared.telemetry import configure_logging, set_log_level
configure_logging("info", "json")
log = structlog.get_logger("orb")
for level in ("info", "debug", "error", "info"):
    set_log_level(level)
    for name in ("debug", "info", "warning", "error"):
        getattr(log, name)(f"{level}.{name}")
    logging.getLogger("other").info(f"{level}.other")
"""


def test_the_log_level_changes_for_loggers_that_were_used_before() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _LOGGING], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == ""
    said = [json.loads(line)["event"] for line in done.stderr.splitlines()]
    assert said == [
        *("info.info", "info.warning", "info.error"),
        *("debug.debug", "debug.info", "debug.warning", "debug.error"),
        "error.error",
        *("info.info", "info.warning", "info.error"),
    ]
