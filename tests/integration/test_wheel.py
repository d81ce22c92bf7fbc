"""The wheel is the whole application: built from the tree, unpacked as an installer would, and run from elsewhere."""

import os
import platform
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from tests.support.scanners import compiled_scanner
from workers.parse.compiled import stem

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("api", "workers", "shared", "cli")


def wheel_in(folder: Path, environment: dict[str, str]) -> Path:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder],
        cwd=ROOT,
        env=environment,
        check=True,
        capture_output=True,
    )
    (path,) = folder.glob("orbweaver-*.whl")
    return path


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiled_scanner()  # where there is no compiler, the wheel is the pure one of the last test
    return wheel_in(tmp_path_factory.mktemp("dist"), dict(os.environ))


def test_wheel_holds_the_application_and_the_migrations_under_their_own_name(wheel: Path) -> None:
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    sources = {path.relative_to(ROOT).as_posix() for room in ROOMS for path in (ROOT / room).rglob("*.py")}
    migrations = {
        f"shared/_migrations/{path.relative_to(ROOT / 'alembic').as_posix()}"
        for path in (ROOT / "alembic").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    other = {"workers/parse/tags.c", f"workers/parse/{stem()}.abi3.so", "shared/adapters/sql/engine/sqlite_tables.sql"}
    assert names == sources | migrations | other | {"orb.py"}
    assert wheel.name.endswith(f"-cp311-abi3-linux_{platform.machine()}.whl")
    metadata = next(name for name in zipfile.ZipFile(wheel).namelist() if name.endswith("/WHEEL"))
    assert b"Root-Is-Purelib: false" in zipfile.ZipFile(wheel).read(metadata)


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
    assert "tag scanner: compiled" in done.stdout.splitlines()
    refused = subprocess.run(
        [python, "-I", "-c", start, "test"], cwd=elsewhere, capture_output=True, text=True, check=False
    )
    assert refused.returncode == 4


def test_without_a_compiler_the_wheel_is_pure(tmp_path: Path) -> None:
    path = wheel_in(tmp_path, {**os.environ, "CC": str(tmp_path / "no-such-compiler")})
    assert path.name.endswith("-py3-none-any.whl")
    assert [name for name in zipfile.ZipFile(path).namelist() if name.endswith(".so")] == []
