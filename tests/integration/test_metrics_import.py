"""A process without metrics does not import their library."""

import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"


@pytest.mark.parametrize("module", ["api.main", "workers.main"])
def test_who_exposes_no_metrics_does_not_load_their_library(module: str) -> None:
    """As the processes of `orb crawl` do: they begin with nothing more than these modules."""
    code = f"import sys, {module}; print([name for name in sys.modules if name.startswith('prometheus')])"
    done = subprocess.run([sys.executable, "-c", code], cwd=DOCS.parents[1], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
