"""`orb up` as a person uses it: a cluster of real parts, ended, killed and started again without losing anything."""

import asyncio
import json
import os
import signal
import socket
import sqlite3
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import httpx
import psutil
import pytest

from tests.support.engines.postgres import PostgresServer
from tests.support.processes.orb_command import ROOT, command_line, orb
from tests.support.processes.up_process import ENDED_S, UpProcess, upped
from tests.support.web import log_judge
from tests.support.web.synthetic_site import SyntheticSite
from tests.support.web.web_server import Web

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

Served = Callable[..., Web]
SITE: Final = SyntheticSite(pages=150, hosts=4)
DELAY_S: Final = 0.05
WAIT_S: Final = 120.0


def declared(up: UpProcess, served: Web, name: str = "docs", *, at: int = 0, delay_s: float = DELAY_S) -> None:
    spec = {
        "seeds": [f"{served.origins[0]}/"],
        "scope": {"mode": "any"},
        "politeness": {"delay_s": delay_s},
        "egress": {"allow": ["127.0.0.0/8"]},
    }
    made = up.ask("POST", "/v1/crawls", {"name": name, "spec": spec}, at=at)
    assert made.status_code == 201, made.text


def finished(up: UpProcess, name: str = "docs") -> None:
    up.until(lambda: up.ask("GET", f"/v1/crawls/{name}").json()["state"] == "finished", "the crawl is finished")


def whole(up: UpProcess, served: Web) -> None:
    """The crawl has every page, its books balance, and no host was hurried."""
    stats = up.ask("GET", "/v1/crawls/docs/stats").json()
    assert stats["counters"]["pages"] == len(SITE.expected_pages(served.origins))
    assert stats["identity"] == {"url_drift": 0, "link_drift": 0}
    assert min(log_judge.smallest_gap(served.log(), host) for host in log_judge.hosts(served.log())) >= DELAY_S


@pytest.mark.smoke
def test_a_first_start_shows_all_there_is_to_know_and_the_next_one_goes_on(web: Served, tmp_path: Path) -> None:
    served, folder = web(SITE), tmp_path / "orb.cluster"
    with upped(folder) as up:
        first = up.facts
        assert [len(first[name]) for name in ("api", "masters", "workers", "metrics")] == [2, 2, 2, 4]
        for origin in first["api"]:
            assert httpx.get(f"{origin}/readyz").status_code == 200
        assert "swagger" in httpx.get(first["docs"]).text.lower()
        assert first["database"] == str(folder / "cluster.db"), "a path for `orb db check`, as `dir` and `logs` are"
        for address in first["metrics"]:
            assert "# TYPE" in httpx.get(address).text
        declared(up, served, at=1)
        finished(up)
        whole(up, served)
        # The masters know where the workers' archive is.
        stored = up.ask("GET", f"/v1/crawls/docs/pages/lookup/body?url={served.origins[0]}/", at=1)
        assert (stored.status_code, stored.content) == (200, httpx.get(f"{served.origins[0]}/").content)
        no_secret_is_seen(up)
        assert up.interrupted() == 0
    assert list((folder / "archive").glob("*.open")) == []
    with upped(folder, key=up.key) as again:
        assert (again.facts["api"], again.facts["metrics"]) == (first["api"], first["metrics"])
        assert again.facts["admin_key"] is None
        assert again.facts["key_shown_at"]
        assert again.ask("GET", "/v1/crawls/docs").json()["state"] == "finished"
        # A second start in the same folder is refused and told who is at work; the first goes on.
        said = refused("up", "--dir", str(folder), "--http", "127.0.0.1:0", code=4)
        assert f"another `orb up` is at work in {folder} (process {again.process.pid})" in said
        a_lost_key_is_replaced(again)
        assert again.interrupted() == 0


def no_secret_is_seen(up: UpProcess) -> None:
    """Neither a password of the broker nor the admin's key is on a command line or in a log."""
    assert up.key is not None
    accounts = json.loads(Path(up.facts["nats_passwords_in"]).read_text())["accounts"]
    passwords = [user["password"] for account in accounts.values() for user in account["users"]]
    assert len(passwords) == 3
    lines = []
    for child in up.family():
        with suppress(psutil.NoSuchProcess):  # it has just ended
            lines.append(" ".join(child.cmdline()))
    assert len(lines) >= 6
    logs = [path.read_text() for path in up.folder.rglob("*.log")]
    assert len(logs) >= 6
    for secret in (*passwords, up.key):
        assert [text for text in (*lines, *logs, up.errors()) if secret in text] == []


def a_lost_key_is_replaced(up: UpProcess) -> None:
    """By a command on the folder, which the audit log names; it works in the cluster that runs."""
    up.key = orb("key", "create", "--dir", up.folder, "--name", "found-again").decode().strip()
    names = {key["name"]: key["created_by"] for key in up.ask("GET", "/v1/api-keys").json()["items"]}
    assert names.keys() == {"first-admin", "found-again"}
    assert names["found-again"].startswith("orb key create")


def refused(*arguments: str, code: int) -> str:
    """What a command said that cannot be carried out."""
    done = subprocess.run(command_line(*arguments), capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    return done.stderr


def test_a_killed_command_leaves_nothing_and_the_next_start_resumes(web: Served, tmp_path: Path) -> None:
    served, folder = web(SITE), tmp_path / "orb.cluster"
    with upped(folder) as up:
        declared(up, served)
        served.wait_served(20)
        up.killed()
    with upped(folder, key=up.key) as again:
        assert again.facts["api"] == up.facts["api"]
        finished(again)
        whole(again, served)
        # The second Ctrl-C does not wait for anybody, as for this one, which does not end by itself.
        family = again.family()
        again.child("worker-1").suspend()
        again.process.send_signal(signal.SIGINT)
        again.process.send_signal(signal.SIGTERM)
        assert again.process.wait(WAIT_S) == 3
        assert psutil.wait_procs(family, ENDED_S)[1] == []


def test_every_process_that_dies_is_started_again_and_told_of(web: Served, tmp_path: Path) -> None:
    served = web(SITE)
    elsewhere = {"ORB_DATABASE": "postgresql://elsewhere.invalid/orb", "ORB_ETCD_USER": "u", "ORB_CONFIG": "/none"}
    with upped(tmp_path / "orb.cluster", settings={"ORB_MEMBER_TTL_S": "3", **elsewhere}) as up:
        declared(up, served)
        served.wait_served(10)
        for name in ("worker-1", "master-1", "nats-server", "etcd"):
            up.child(name).kill()
        # One that was ended by hand comes back, too.
        up.child("worker-2").terminate()
        finished(up)
        whole(up, served)
        for name in ("worker-1", "master-1", "NATS", "etcd"):
            up.says(f"orb: {name} was killed by SIGKILL; it is started again")
        up.says("orb: worker-2 ended with status 0; it is started again")
        up.until(lambda: len(up.ask("GET", "/v1/workers").json()["items"]) == 2, "both workers are back")
        assert up.interrupted() == 0


def test_what_no_restart_can_help_ends_it_with_the_reason(tmp_path: Path) -> None:
    with upped(tmp_path / "orb.cluster", ready=False, settings={"ORB_MAX_VISITS": "none"}) as up:
        said, _ = up.process.communicate(timeout=WAIT_S)
        assert (up.process.returncode, json.loads(said)["exit_code"]) == (4, 4)
        assert "max_visits (ORB_MAX_VISITS): expected" in up.errors()
        assert f"the logs are in {tmp_path / 'orb.cluster' / 'logs'}" in up.errors()
        # The key that nobody has read yet is shown after all.
        assert up.errors().count("the first admin key, shown this once: orb_") == 1


def test_a_port_that_is_taken_is_told_before_anything_is_begun(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = refused("up", "--dir", str(tmp_path / "a"), "--http", f"127.0.0.1:{port}", code=4)
    assert f"orb: cannot listen at 127.0.0.1:{port} for the API (Address already in use); choose another with" in said
    assert list(tmp_path.iterdir()) == []


def test_silent_database_is_reported_with_advice_and_leaves_nothing(tmp_path: Path) -> None:
    with socket.socket() as silent:  # which has the port, and does not listen
        silent.bind(("127.0.0.1", 0))
        port = silent.getsockname()[1]
        url = f"postgresql://orb:secret@127.0.0.1:{port}/orb"
        said = refused("up", "--dir", str(tmp_path / "a" / "b"), "--database", url, code=4)
    assert f"The database is postgresql://orb@127.0.0.1:{port}/orb: check that PostgreSQL listens at 127.0.0.1" in said
    assert "secret" not in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--masters", "0"], "--masters must be at least 1"),
        (["--workers", "x"], "--workers"),
        (["--http", "8081"], "--http is HOST:PORT"),
        (["--database", "mysql://db"], "--database is a postgresql:// URL"),
    ],
)
def test_what_makes_no_sense_is_wrong_usage_and_makes_nothing(
    arguments: list[str], message: str, tmp_path: Path
) -> None:
    assert message in refused("up", "--dir", str(tmp_path / "a"), *arguments, code=2)
    assert not (tmp_path / "a").exists()


def test_masters_on_postgresql_share_partitions_and_bind_the_folder(
    web: Served, tmp_path: Path, postgres_server: PostgresServer
) -> None:
    served, folder = web(SITE), tmp_path / "orb.cluster"
    url = asyncio.run(postgres_server.database(empty=True))
    with upped(folder, "--database", url) as up:

        def shared() -> bool:
            masters: list[dict[str, Any]] = up.ask("GET", "/v1/masters").json()["items"]
            return {master["id"] for master in masters} == set(up.owners()) == {"master-1", "master-2"}

        up.until(shared, "both own partitions")
        declared(up, served)
        finished(up)
        whole(up, served)
        assert up.interrupted() == 0
    assert not (folder / "cluster.db").exists()
    assert "give it again with --database" in refused("up", "--dir", str(folder), code=2)


def readme_commands() -> list[str]:
    """The commands that the README gives a new user in a second terminal, a line each."""
    text = (ROOT / "README.md").read_text("utf-8")
    section = text.split("## A cluster on one machine\n")[1].split("\n## ")[0]
    lines = [line[4:] for line in section.splitlines() if line.startswith("    ")]
    assert lines[0] == "./orb up"
    return "\n".join(lines[1:]).replace("\\\n", " ").splitlines()


def test_the_first_crawl_of_the_readme_works_as_it_is_written(web: Served, tmp_path: Path) -> None:
    """Only the key, the port and the site are this machine's."""
    served = web(SyntheticSite(pages=10))
    commands = readme_commands()
    assert commands[0] == "export ORB_API_KEY=orb_..."
    assert len(commands) >= 4
    with upped(tmp_path / "orb.cluster", "--masters", "1", "--workers", "1") as up:
        assert up.key is not None
        answers = []
        for command in commands[1:]:
            here = command.replace("http://127.0.0.1:8081", up.address).replace(
                '"https://example.org/"]', f'"{served.origins[0]}/"], "egress": {{"allow": ["127.0.0.0/8"]}}'
            )
            done = subprocess.run(
                ["bash", "-c", here],
                capture_output=True,
                check=True,
                timeout=60,
                env={**os.environ, "ORB_API_KEY": up.key},
            )
            answers.append(json.loads(done.stdout))
            finished(up)
    made, progress, urls, schedule = answers
    assert (made["name"], made["state"]) == ("docs", "seeding")
    assert "progress" in progress
    assert len(urls["items"]) >= 10
    assert (schedule["name"], schedule["crawl"], len(schedule["next_firings"])) == ("nightly", "docs", 10)


def test_the_key_of_no_cluster_is_wrong_usage(tmp_path: Path) -> None:
    assert "is not the folder of a cluster" in refused("key", "create", "--dir", str(tmp_path), code=2)
    sqlite3.connect(tmp_path / "x.db").close()
    assert "there is no database" in refused("key", "create", "--database", str(tmp_path / "y.db"), code=2)
