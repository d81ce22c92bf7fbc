"""The image: its engines take the settings of compose.yaml, and the steps of the Dockerfile make the command."""

import os
import re
import subprocess
from pathlib import Path
from typing import Final

import pytest

from tests.unit.test_deploy import DEPLOY, ROOT, SERVICES

DOCKERFILE: Final = (DEPLOY / "Dockerfile").read_text()


def steps(word: str) -> list[str]:
    """What stands behind an instruction, each time."""
    return re.findall(rf"^{word} (.+)$", DOCKERFILE, re.MULTILINE)


def let_through() -> list[str]:
    """What of the folder reaches the build: all is ignored but what is named."""
    first, *rest = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    assert first == "*"
    assert all(line.startswith("!") for line in rest)
    return [line.removeprefix("!") for line in rest]


def image(service: str) -> tuple[str, ...]:
    """The numbers in the tag of a service's image."""
    return tuple(re.findall(r"\d+", SERVICES[service]["image"].rpartition(":")[2]))


def test_postgresql_takes_the_settings_of_compose(tmp_path: Path, postgres_programs: Path) -> None:
    """All but those of TLS, without which the wheel's was built."""
    server = postgres_programs / "postgres"
    said = subprocess.run([server, "--version"], capture_output=True, text=True, check=True).stdout
    assert f" {image('postgres')[0]}." in said
    settings = tmp_path / "postgresql.conf"
    lines = (DEPLOY / "postgres" / "postgresql.conf").read_text().splitlines()
    settings.write_text("\n".join(line for line in lines if not line.startswith("ssl")))
    (tmp_path / "data").mkdir()
    judged = subprocess.run(
        [server, "-C", "max_connections", "-D", tmp_path / "data", "-c", f"config_file={settings}"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (judged.returncode, judged.stdout) == (0, "100\n"), judged.stderr
    mounted = [volume.split(":")[1] for volume in SERVICES["postgres"]["volumes"] if volume.startswith("postgres:")]
    assert mounted == ["/var/lib/postgresql"], "the image of 18 and later keeps its data below, under its version"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_what_the_image_runs_at_its_build_makes_the_command(tmp_path: Path) -> None:
    """The same steps in a folder, with the Python that runs this: what is locked can be installed, and is enough."""
    source, installed = tmp_path / "src", tmp_path / "orb"
    source.mkdir()
    subprocess.run(["cp", "-r", *(ROOT / name for name in let_through()), source], check=True)
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("ORB_", "PYTHON"))}
    runs = [run for run in steps("RUN") if "pip" in run]
    assert len(runs) == 4
    for run in runs:
        here = re.sub(r"(?<!\S)/(orb|build|wheel)\b", rf"{tmp_path}/\1", run.replace("python -m", "python3 -m"))
        subprocess.run(["sh", "-ec", here], cwd=source, env=clean, check=True, stdout=subprocess.DEVNULL)
    assert not list(installed.glob("bin/pip*")), "what runs needs no installer"
    path = {**clean, "PATH": f"{installed}/bin:{clean['PATH']}"}
    for words in (["--version"], ["master", "--help"], ["worker", "--help"], ["ctl", "--help"]):
        ended = subprocess.run(["orb", *words], cwd="/", env=path, capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stderr


def test_documented_copy_of_the_archive_keeps_folders_of_their_owner(tmp_path: Path) -> None:
    """A worker makes its folders with mode 0700. A copy of files would belong to another user than the worker."""
    page = (ROOT / "docs" / "operations.md").read_text("utf-8")
    (packed,) = re.findall(r"^    docker compose exec -T worker-1 (tar .+ > archive\.tar)$", page, re.MULTILINE)
    (unpacked,) = re.findall(r"^    docker .+ --entrypoint tar worker-1 (.+ < archive\.tar)$", page, re.MULTILINE)
    for folder in ("old", "new"):
        (tmp_path / folder).mkdir()
    (tmp_path / "old" / "archive").mkdir(mode=0o700)
    (tmp_path / "old" / "archive" / "a.warc.gz").write_bytes(b"page")
    for command, folder in ((packed, "old"), (f"tar {unpacked}", "new")):
        subprocess.run(command.replace("/archive ", f"{folder} "), shell=True, cwd=tmp_path, check=True)
    copy = tmp_path / "new" / "archive"
    assert (copy / "a.warc.gz").read_bytes() == b"page"
    assert copy.stat().st_mode & 0o777 == 0o700
    assert "worker-1:/archive" not in page
