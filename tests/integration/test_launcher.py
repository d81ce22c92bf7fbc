"""The launcher script of a clone, with real Pythons and real virtual environments.

The locks are empty or name what no index offers, so nothing here needs a network.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.scanners import compiled_scanner

REPOSITORY = Path(__file__).resolve().parents[2]
PYTHON = Path(os.path.realpath(sys.executable))
LOCKS = ("requirements.lock", "requirements-dev.lock", "requirements-launcher.lock")
TOOLS = ("cat", "cksum", "dirname", "readlink", "sh")

ECHO = """
import os, sys
print(os.getcwd()); print(sys.argv[1:]); print(sys.path[0] or "here"); print(os.environ["PYTHONPATH"])
"""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone with no packages in its locks, in a folder whose name wants quoting."""
    root = tmp_path / "a clone"
    (root / "cli" / "dev").mkdir(parents=True)
    shutil.copy(REPOSITORY / "orb", root)
    shutil.copy(REPOSITORY / "cli" / "dev" / "bootstrap.py", root / "cli" / "dev")
    (root / "workers" / "parse").mkdir(parents=True)
    for name in ("tags.c", "compiled.py"):
        shutil.copy(REPOSITORY / "workers" / "parse" / name, root / "workers" / "parse")
    (root / "orb.py").write_text(ECHO)
    for lock in LOCKS:
        (root / lock).write_text("")
    return root


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A PATH with the launcher's tools and this Python as python3; an index that refuses connections."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for tool in TOOLS:
        found = shutil.which(tool)
        assert found is not None
        (tools / tool).symlink_to(found)
    write_python(tools / "python3", 'exec "$real" "$@"')
    return {
        "PATH": str(tools),
        "HOME": str(tmp_path),
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_INDEX_URL": "http://127.0.0.1:1/simple",
        "PIP_RETRIES": "0",
    }


def write_python(path: Path, body: str) -> None:
    path.write_text(f'#!/bin/sh\nreal="{PYTHON}"\n{body}\n')
    path.chmod(0o755)


def orb(clone: Path, environment: dict[str, str], *arguments: str, **more: object) -> subprocess.CompletedProcess[str]:
    cwd = more.get("cwd", clone)
    assert isinstance(cwd, Path)
    script = more.get("script", clone / "orb")
    return subprocess.run(
        [str(script), *arguments], cwd=cwd, env=environment, capture_output=True, text=True, check=False, timeout=100
    )


@pytest.mark.long
def test_first_use_sets_up_and_compiles_and_later_ones_are_silent(clone: Path, environment: dict[str, str]) -> None:
    """The bytecode is there although Python may write none, and a module that cannot be compiled stops nothing."""
    environment["PYTHONDONTWRITEBYTECODE"] = "1"
    (clone / "cli" / "broken.py").write_text("this is no Python")
    first = orb(clone, environment, "crawl", "a b", "*", "")
    assert first.returncode == 0, first.stderr
    assert first.stderr.count("\n") == 1
    assert "setting up" in first.stderr
    assert first.stdout.splitlines()[1] == "['crawl', 'a b', '*', '']"
    stamp = (clone / ".venv" / "orb-stamp").stat().st_mtime_ns
    compiled = {path.name.partition(".")[0] for path in clone.glob("**/__pycache__/*.pyc") if ".venv" not in path.parts}
    assert compiled == {"orb", "bootstrap", "compiled"}
    second = orb(clone, environment, "crawl")
    assert (second.returncode, second.stderr) == (0, "")
    assert (clone / ".venv" / "orb-stamp").stat().st_mtime_ns == stamp


@pytest.mark.parametrize("compiler", [True, False])
@pytest.mark.long
def test_set_up_builds_the_tag_scanner_where_it_can_and_is_silent_where_not(
    clone: Path, environment: dict[str, str], compiler: bool
) -> None:
    for name in ("cli", "workers", "shared/domain"):
        shutil.copytree(REPOSITORY / name, clone / name, dirs_exist_ok=True)
    if compiler:
        compiled_scanner()
        environment["PATH"] += f":{os.environ['PATH']}"
    first = orb(clone, environment)
    assert (first.returncode, first.stderr.count("\n")) == (0, 1), first.stderr
    assert [path.suffix for path in (clone / ".venv" / "orb-compiled").iterdir()] == [".so" if compiler else ".txt"]
    source = clone / "workers" / "parse" / "tags.c"
    source.write_text(source.read_text() + "/* changed */\n")
    assert "setting up" in orb(clone, environment).stderr
    assert orb(clone, environment).stderr == ""


@pytest.mark.long
def test_symlinked_launcher_keeps_directory_and_imports_nothing_there(
    clone: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "orb.py").write_text("raise SystemExit('the wrong orb')")
    (tmp_path / "link to a clone").symlink_to("a clone")
    (elsewhere / "orbit").symlink_to("../link to a clone/orb")
    (elsewhere / "orbit2").symlink_to(elsewhere / "orbit")
    done = orb(clone, environment | {"PYTHONPATH": str(elsewhere)}, cwd=elsewhere, script="./orbit2")
    assert done.returncode == 0, done.stderr
    cwd, _, first, path = done.stdout.splitlines()
    assert cwd == str(elsewhere)
    assert first == path == str(clone)


@pytest.mark.long
def test_changed_lock_is_installed_and_a_developers_environment_stays_one(
    clone: Path, environment: dict[str, str]
) -> None:
    assert "from requirements-dev.lock" in orb(clone, environment, "test").stderr
    assert orb(clone, environment, "crawl").stderr == ""
    (clone / "requirements.lock").write_text("# changed\n")
    assert "from requirements-dev.lock" in orb(clone, environment, "crawl").stderr
    assert orb(clone, environment, "test").stderr == ""


@pytest.mark.long
def test_first_uses_at_the_same_time_set_up_once(clone: Path, environment: dict[str, str]) -> None:
    running = [
        subprocess.Popen(
            [clone / "orb", "crawl"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for _ in range(4)
    ]
    said = [process.communicate(timeout=100) for process in running]
    assert [process.returncode for process in running] == [0] * 4, said
    assert sum("setting up" in error for _, error in said) == 1, said


@pytest.mark.long
def test_set_up_killed_halfway_is_taken_up_again(clone: Path, environment: dict[str, str]) -> None:
    with subprocess.Popen([clone / "orb"], env=environment, stderr=subprocess.DEVNULL, start_new_session=True) as first:
        while not (clone / ".venv" / "bin").exists():
            assert first.poll() is None, "the set-up ended before it could be killed"
            time.sleep(0.001)
        os.killpg(first.pid, signal.SIGKILL)
    assert not (clone / ".venv" / "orb-stamp").exists()
    again = orb(clone, environment)
    assert again.returncode == 0, again.stderr
    assert "setting up" in again.stderr


@pytest.mark.long
def test_environment_whose_python_went_away_is_made_anew(clone: Path, environment: dict[str, str]) -> None:
    assert orb(clone, environment).returncode == 0
    for name in ("python", "python3"):
        (clone / ".venv" / "bin" / name).unlink()
    (clone / ".venv" / "bin" / "python").symlink_to("/nonexistent/python")
    again = orb(clone, environment)
    assert again.returncode == 0, again.stderr
    assert "setting up" in again.stderr


@pytest.mark.long
def test_no_network_is_one_sentence_and_exit_code_4_and_heals(clone: Path, environment: dict[str, str]) -> None:
    (clone / "requirements-launcher.lock").write_text("uv==0.13.8 --hash=sha256:" + "0" * 64 + "\n")
    offline = orb(clone, environment, "crawl")
    assert offline.returncode == 4
    assert offline.stdout == ""
    sentence = offline.stderr.splitlines()[-1]
    assert sentence.startswith("orb: could not install")
    assert "needs the network" in sentence
    assert "127.0.0.1" in (clone / ".venv.orb-setup.log").read_text()
    (clone / "requirements-launcher.lock").write_text("")
    assert orb(clone, environment, "crawl").returncode == 0


def test_no_python_new_enough_is_exit_code_4(clone: Path, environment: dict[str, str]) -> None:
    write_python(Path(environment["PATH"]) / "python3", "exit 1")
    done = orb(clone, environment)
    assert done.returncode == 4
    assert done.stderr.startswith("orb: no Python 3.11 or newer")
    assert not (clone / ".venv").exists()


@pytest.mark.long
def test_an_old_python3_gives_way_to_a_newer_one_by_number(clone: Path, environment: dict[str, str]) -> None:
    tools = Path(environment["PATH"])
    (tools / "python3").rename(tools / "python3.12")
    write_python(tools / "python3", "exit 1")
    assert orb(clone, environment).returncode == 0


def test_python_without_venv_says_what_to_install(clone: Path, environment: dict[str, str]) -> None:
    hide = "import runpy, sys; sys.modules['ensurepip'] = None; sys.argv = sys.argv[1:]"
    write_python(
        Path(environment["PATH"]) / "python3",
        f"""case $1 in
            -I) shift; exec "$real" -I -c "{hide}; runpy.run_path(sys.argv[0], run_name='__main__')" "$@" ;;
            *) case $2 in *ensurepip*) exit 1 ;; *) exec "$real" "$@" ;; esac ;;
        esac""",
    )
    done = orb(clone, environment)
    assert done.returncode == 4
    assert f"apt install python3.{sys.version_info.minor}-venv" in done.stderr
