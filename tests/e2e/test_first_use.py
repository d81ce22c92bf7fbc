"""A fresh clone's first use over the real network: only where CI is set, for it downloads the whole runtime lock."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CLONED = ("orb", "orb.py", "api", "workers", "shared", "cli", "alembic")

IMPORT_ALL = """
import importlib, pathlib, sys
sys.path.insert(0, ".")
for room in ("api", "workers", "shared", "cli"):
    for path in sorted(pathlib.Path(room).rglob("*.py")):
        name = ".".join(path.with_suffix("").parts).removesuffix(".__init__")
        importlib.import_module(name)
forbidden = {"pytest", "hypothesis", "mypy", "packaging.requirements"} & set(sys.modules)
sys.exit(f"imported {forbidden}" if forbidden else 0)
"""


@pytest.mark.e2e
@pytest.mark.timeout(600)
@pytest.mark.skipif(not os.environ.get("CI"), reason="downloads every runtime package; set CI to run it")
def test_runtime_lock_is_enough_for_every_module(tmp_path: Path) -> None:
    for name in CLONED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, tmp_path)
    for lock in ROOT.glob("requirements*.lock"):
        shutil.copy(lock, tmp_path)
    first = subprocess.run([tmp_path / "orb", "version"], capture_output=True, text=True, check=False, cwd="/")
    assert first.returncode == 0, first.stderr
    assert first.stdout.startswith("Orbweaver ")
    python = tmp_path / ".venv" / "bin" / "python"
    done = subprocess.run([python, "-I", "-c", IMPORT_ALL], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
