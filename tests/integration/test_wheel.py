"""The wheel is the whole application: built from the tree, unpacked as an installer would, and run from elsewhere."""

import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("api", "workers", "shared", "cli")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", built],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (path,) = built.glob("orbweaver-*.whl")
    return path


def test_wheel_holds_the_application_and_the_migrations_under_their_own_name(wheel: Path) -> None:
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    sources = {path.relative_to(ROOT).as_posix() for room in ROOMS for path in (ROOT / room).rglob("*.py")}
    migrations = {
        f"shared/_migrations/{path.relative_to(ROOT / 'alembic').as_posix()}"
        for path in (ROOT / "alembic").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert names == sources | migrations | {"orb.py"}


def test_command_of_the_wheel_runs_from_anywhere(wheel: Path, tmp_path: Path) -> None:
    environment = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    python = environment / "bin" / "python"
    asked = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = Path(subprocess.run([python, "-I", "-c", asked], check=True, capture_output=True, text=True).stdout.strip())
    zipfile.ZipFile(wheel).extractall(site)
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    start = "import sys; sys.argv[0] = 'orb'; from orb import main; sys.exit(main())"
    for argument in ("--help", "version"):
        done = subprocess.run(
            [python, "-I", "-c", start, argument], cwd=elsewhere, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert "Orbweaver" in done.stdout
    refused = subprocess.run(
        [python, "-I", "-c", start, "test"], cwd=elsewhere, capture_output=True, text=True, check=False
    )
    assert refused.returncode == 4
