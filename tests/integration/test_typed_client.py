"""A client made from the committed document by a public generator works against the API, as docs/api.md says."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import pytest

from shared.domain.ops.access import Role
from tests.support.api.api_server import Served, served
from tests.support.engines.nats_server import BrokerServer
from tests.support.processes.orb_command import ROOT

TOOLS: Final = Path(sys.executable).parent
PACKAGE: Final = "orbweaver_client"

Part = Callable[[str], Any]


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the client's package is in. The generator ends with an error when it has warned of anything."""
    folder = tmp_path_factory.mktemp("client")
    command = (
        *(TOOLS / "openapi-python-client", "generate", "--path", ROOT / "openapi" / "openapi.json"),
        *("--config", ROOT / "openapi" / "client.yaml", "--meta", "none", "--output-path", folder / PACKAGE),
        "--fail-on-warning",
    )
    path = f"{TOOLS}{os.pathsep}{os.environ['PATH']}"  # it formats by ruff
    ended = subprocess.run(command, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "WARNING" not in ended.stdout + ended.stderr
    return folder


@pytest.fixture
def part(generated: Path) -> Iterator[Part]:
    """`part("models.crawl")` is a module of the client."""
    sys.path.insert(0, str(generated))
    try:
        yield lambda name: import_module(f"{PACKAGE}.{name}")
    finally:
        sys.path.remove(str(generated))


@pytest.mark.long
def test_what_the_document_makes_passes_a_type_checker(generated: Path) -> None:
    """Models and calls; the package's other modules are the generator's own, the same for everybody."""
    command = (
        *(sys.executable, "-m", "mypy", "--strict", "--config-file", os.devnull, "--cache-dir", generated / "cache"),
        *("--follow-imports", "silent", "-p", f"{PACKAGE}.models", "-p", f"{PACKAGE}.api"),
    )
    ended = subprocess.run(command, cwd=generated, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout


@pytest.mark.long
def test_every_part_of_the_client_can_be_loaded(generated: Path, part: Part) -> None:
    files = sorted((generated / PACKAGE).rglob("*.py"))
    names = [".".join(file.relative_to(generated / PACKAGE).with_suffix("").parts) for file in files]
    assert len(names) > 150
    for name in names:
        part(name.removesuffix("__init__").rstrip(".")) if name != "__init__" else None


def test_the_client_creates_reads_lists_and_is_told_what_is_wrong(tmp_path: Path, part: Part) -> None:
    broker = BrokerServer(tmp_path / "broker")
    try:
        with served(tmp_path, broker) as running:
            _story(running, part)
    finally:
        asyncio.run(broker.embedded.stop())


def _story(running: Served, part: Part) -> None:
    models, problem = part("models"), part("models.problem_body").ProblemBody
    with part("client").AuthenticatedClient(base_url=running.url, token=running.keys[Role.OPERATOR]) as client:
        for name in ("alpha", "beta", "docs"):
            spec = models.CrawlSpecInput.from_dict({"seeds": ["https://example.org/"], "scope": {"max_depth": 2}})
            wanted = models.CrawlInput(name=name, spec=spec, start=False)
            made = part("api.crawls.create_crawl").sync(client=client, body=wanted)
            assert isinstance(made, models.Crawl), made
            assert (made.name, made.state, made.spec.scope.max_depth) == (name, "created", 2)

        shown = part("api.crawls.get_crawl").sync_detailed(client=client, name="docs")
        assert shown.parsed.revision == 1
        assert shown.headers["ETag"].startswith('"')

        listed, cursor = [], part("types").UNSET
        while cursor is not None:
            page = part("api.crawls.list_crawls").sync(client=client, limit=2, cursor=cursor)
            listed += [crawl.name for crawl in page.items]
            cursor = page.next_
        assert listed == ["alpha", "beta", "docs"]

        urgent = models.SeedInput(url="https://example.org/b", priority=5)
        seeds = models.AddSeedsJsonBody(["https://example.org/a", urgent])
        report = part("api.seeds.add_seeds").sync(client=client, name="docs", body=seeds)
        assert (report.accepted, report.rejected) == (2, 0)
        from_file = part("types").File(payload=BytesIO(b"https://example.org/c\nnot a url\n"))
        report = part("api.seeds.add_seeds").sync(client=client, name="docs", body=from_file)
        assert (report.accepted, report.rejected, report.first_rejected[0].line) == (1, 1, 2)

        missing = part("api.crawls.get_crawl").sync(client=client, name="nothing")
        assert isinstance(missing, problem)
        assert (missing.status, missing.type_) == (404, "urn:orbweaver:problem:not-found")
        wrong = models.CrawlInput(name="wrong", spec=models.CrawlSpecInput(seeds=[]))
        refused = part("api.crawls.create_crawl").sync(client=client, body=wrong)
        assert isinstance(refused, problem)
        assert refused.errors[0].path == "spec.seeds"
