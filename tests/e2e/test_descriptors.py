"""Every process holds what it opened or was given, and nothing else of the process that started it."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.processes.crawl_process import Running, write_spec
from tests.support.processes.open_files import kept_on_exec, open_in, shared_connections
from tests.support.processes.up_process import upped
from tests.support.web.synthetic_site import SyntheticSite
from tests.support.web.web_server import Web

pytestmark = pytest.mark.e2e

ITEMS = {"items": [{"name": "title", "fields": {"t": {"css": "title"}}}]}
MEMBERS = {"master": ("_master", "master"), "worker": ("_worker", "worker")}


def role_of(process: psutil.Process) -> str:
    words = process.cmdline()
    if words == ["orb", "fork-server"]:
        return "fork server"
    if "workers.extract.process" in words:
        return "extractor"
    if Path(words[0]).name in ("nats-server", "etcd"):
        return "engine"
    return next(role for role, names in MEMBERS.items() if any(name in words for name in names))


def check(command: psutil.Process) -> None:
    """No connection is held twice, and none of our programs would hand on what it opened."""
    family = command.children(recursive=True)
    roles = {process.pid: role_of(process) for process in family}
    assert set(roles.values()) == {"master", "worker", "extractor", "engine", "fork server"}
    shared = shared_connections(family)
    assert {target: all(number < 3 for _, number in holders) for target, holders in shared.items()} == dict.fromkeys(
        shared, True
    ), shared
    for process in family:
        match roles[process.pid]:
            case "extractor":
                held = open_in(process)
                assert set(held) == {0, 1, 2}
                assert held[0] == held[1]
                assert held[0].startswith("socket:")
            case "fork server":
                held = open_in(process)
                assert {held.pop(number) for number in (0, 1, 2)} == {"/dev/null"}
                (requests,) = held.values()
                assert requests.startswith("socket:")
            case "master" | "worker":
                # The event loop opens this one; it is read only where a child gets no input.
                kept = {target for target in kept_on_exec(process).values() if target != "/dev/null"}
                assert kept == set(), roles[process.pid]


def spec_of(served: Web) -> dict[str, Any]:
    return {
        "seeds": [f"{served.origins[0]}/"],
        "politeness": {"delay_s": 0.05},
        "egress": {"allow": ["127.0.0.0/8"]},
        "extract": ITEMS,
    }


def extracting(command: psutil.Process) -> bool:
    for child in command.children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it has just ended
            if "workers.extract.process" in child.cmdline():
                return True
    return False


def test_no_process_of_a_local_crawl_holds_what_it_was_not_given(web: Callable[..., Web], tmp_path: Path) -> None:
    served = web(SyntheticSite(pages=200))
    spec = write_spec(tmp_path / "spec.json", spec_of(served))
    with Running(tmp_path / "crawl", "--spec", spec, "--workers", "1") as run:
        run.wait_until(lambda: extracting(run.command), "items are taken out")
        served.wait_served(20)
        check(run.command)


def test_no_member_of_orb_up_holds_what_it_was_not_given(web: Callable[..., Web], tmp_path: Path) -> None:
    served = web(SyntheticSite(pages=200))
    with upped(tmp_path / "orb.cluster", "--masters", "1", "--workers", "1") as up:
        declared = up.ask("PUT", "/v1/crawls/docs", {"spec": spec_of(served), "start": True})
        assert declared.status_code == 201, declared.text
        command = psutil.Process(up.process.pid)
        up.until(lambda: extracting(command), "items are taken out")
        served.wait_served(20)
        check(command)
