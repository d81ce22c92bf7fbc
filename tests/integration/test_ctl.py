"""`orb ctl` against the real API over a real socket: what a person sees, what a script gets, how it ends."""

import asyncio
import gzip
import json
import re
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cli.ctl.client import Client, ClientResponse
from cli.main import main
from cli.terminal.exits import Exit
from shared.domain.frontier.states import CrawlState, UrlState
from shared.domain.ids import Partition
from shared.domain.ops.access import Role
from shared.wire.events import EventKind, event_subject
from shared.wire.messages import decode_discoveries
from tests.support.api.api_server import Served, served
from tests.support.api.rest_api import PARTITIONS, Follower
from tests.support.database.store_tables import links, sqlite_tables
from tests.support.engines.nats_server import BrokerServer, stored
from tests.support.engines.nats_server import server as server

Orb = Callable[..., str]

CRAWL = """\
name: docs
labels: {team: search}
start: false
spec:
  seeds: [https://example.org/]
  scope: {max_depth: 3}
"""


@pytest.fixture(autouse=True)
def nothing_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ORB_SERVER", "ORB_API_KEY", "ORB_CONTEXT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")  # loopback is reached without it


@pytest.fixture
def orb(capfd: pytest.CaptureFixture[str]) -> Orb:
    """`orb ctl`: its standard output, or with another exit code its errors."""

    def run(*arguments: object, code: int = Exit.OK) -> str:
        ended = main(["ctl", *map(str, arguments)])
        out, err = capfd.readouterr()
        assert ended == code, err
        assert "Traceback" not in err
        return out if code == Exit.OK else err

    return run


@pytest.fixture
def running(tmp_path: Path, server: BrokerServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """An API with a broker, which `orb` asks as an admin."""
    (tmp_path / "api").mkdir()
    with served(tmp_path / "api", server) as api:
        for name, value in api.environ().items():
            monkeypatch.setenv(name, value)
        yield api


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "crawl.yaml"
    path.write_text(CRAWL)
    return path


def ageless(text: str) -> str:
    """The text without what depends on the clock."""
    return re.sub(r"\b(\d+[smhd])+(?= |$)", "0s", text, flags=re.M)


@pytest.mark.long
def test_a_crawl_is_declared_changed_turned_and_deleted(running: Served, orb: Orb, file: Path) -> None:
    assert orb("apply", "-f", file, "--dry-run") == "crawl/docs would be created, created\n"
    assert orb("apply", "-f", file) == "crawl/docs created\n"
    assert orb("apply", "-f", file) == "crawl/docs unchanged\n"
    file.write_text(CRAWL.replace("max_depth: 3", "max_depth: 5"))
    assert orb("apply", "-f", file, "--dry-run") == (
        "crawl/docs would become revision 2, created\n  - spec.scope.max_depth: 3\n  + spec.scope.max_depth: 5\n"
    )
    assert orb("apply", "-f", file) == "crawl/docs configured\n"
    assert ageless(orb("get", "crawls")) == (
        "NAME  STATE    REVISION  ACTIVE  AGE  LABELS\n"
        "docs  created         2      0s   0s  team=search\n"
    )  # fmt: skip
    assert orb("start", "docs") == "crawl/docs started\n"
    assert orb("pause", "docs") == "crawl/docs paused\n"
    assert orb("pause", "docs", code=Exit.FAILED) == (
        "orb: a crawl that is paused does not allow pause; allowed now: resume, cancel, reset, retry-failed, delete\n"
    )
    assert orb("get", "crawls", "--state", "paused", "-l", "team=search", "-o", "name") == "crawl/docs\n"
    assert orb("wait", "crawl", "docs", "--for", "state=paused") == "crawl/docs paused\n"
    assert orb("delete", "-f", file) == "crawl/docs deleted\n"
    assert orb("get", "crawl", "docs", code=Exit.FAILED) == "orb: there is no crawl 'docs'\n"


def test_what_is_shown_declares_the_same_again(running: Served, orb: Orb, file: Path, tmp_path: Path) -> None:
    orb("apply", "-f", file)
    shown = tmp_path / "shown.yaml"
    for arguments in (("get", "crawl", "docs", "-o", "yaml"), ("get", "crawls", "-o", "json")):
        shown.write_text(orb(*arguments))
        assert orb("apply", "-f", shown) == "crawl/docs unchanged\n"


def test_a_wrong_spec_is_pointed_at_and_nothing_is_changed(running: Served, orb: Orb, file: Path) -> None:
    file.write_text("name: good\nspec: {seeds: [https://example.org/]}\n---\n" + CRAWL.replace("3", "-3"))
    said = orb("apply", "-f", file, code=Exit.USAGE)
    assert f"{file}, document 2: crawl docs: the crawl spec cannot be used:\n  spec.scope.max_depth: " in said
    assert json.loads(orb("get", "crawls", "-o", "json")) == {"items": []}
    said = orb("create", "docs", "https://example.org/", "--delay", "soon", code=Exit.USAGE)
    assert "spec.politeness.delay_s" in said


def test_seeds_of_any_form_are_durable_once_and_what_was_not_taken_is_told(
    running: Served, server: BrokerServer, orb: Orb, file: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    orb("apply", "-f", file)
    packed = tmp_path / "seeds.gz"
    packed.write_bytes(gzip.compress(b"".join(b"http://h%d.test/%d\n" % (n % 5, n) for n in range(1000)) + b"nonsense"))
    for _ in range(2):
        said = orb("seeds", "add", "docs", "-f", packed, "--upload-id", "nightly", "-o", "json")
        report = json.loads(said)
        assert (report["accepted"], report["rejected"], report["lines"]) == (1000, 1, 1001)
        assert report["first_rejected"][0]["line"] == 1001
    lines = tmp_path / "seeds.jsonl"
    lines.write_text('"http://x.test/"\n{"url": "http://y.test/", "priority": 3}\n')
    assert orb("seeds", "add", "docs", "-f", lines) == "crawl/docs seeds: 2 accepted, 0 duplicate, 0 rejected\n"
    assert orb("seeds", "add", "docs", "ftp://x.test/", code=Exit.FAILED).startswith("orb: line 1 was rejected: ftp:")
    urls = sorted(asyncio.run(discovered(server)))
    assert urls == sorted([*(f"http://h{n % 5}.test/{n}" for n in range(1000)), "http://x.test/", "http://y.test/"])


async def discovered(server: BrokerServer) -> list[str]:
    """Every URL in the stream of discoveries."""
    found: list[str] = []
    async with server.broker(declare=False) as broker:
        for partition in range(PARTITIONS):
            for message in map(decode_discoveries, await stored(broker, Partition(partition), "discovery")):
                found += [link.url for origin in message.origins for link in origin.links]
    return found


def test_the_frontier_is_listed_described_and_explained(running: Served, orb: Orb, tmp_path: Path, file: Path) -> None:
    async def fill() -> None:
        async with sqlite_tables(tmp_path / "api") as tables:
            await tables.found(*links("a.test", range(7)))
            row = await tables.lease("a.test", 3)
            assert row is not None
            await tables.settle(row, UrlState.FAILED, reason="http_500")
            await tables.store.set_state(tables.crawl_id, CrawlState.PAUSED, None, 1)  # the file has a wider scope

    asyncio.run(fill())
    assert orb("apply", "-f", file) == "crawl/docs configured\n"
    assert orb("get", "urls", "-c", "docs", "-o", "name").count("url/http://a.test/") == 7
    failed = json.loads(orb("get", "urls", "-c", "docs", "--state", "failed", "-o", "json"))["items"]
    assert {url["reason"] for url in failed} == {"http_500"}
    assert len(yaml.safe_load(orb("get", "urls", "-c", "docs", "--limit", 4, "-o", "yaml"))["items"]) == 4
    assert orb("get", "urls", "-c", "docs").splitlines()[0].split() == [
        "URL", "STATE", "STATUS", "DEPTH", "ATTEMPTS", "SIZE", "FETCHED",
    ]  # fmt: skip
    assert "a.test" in orb("get", "hosts", "-c", "docs")
    assert "failed (http_500)" in orb("get", "url", failed[0]["url"], "-c", "docs")
    assert "http_500" in orb("describe", "url", failed[0]["url"], "-c", "docs")
    stats = orb("stats", "docs")
    assert re.search(r"^failed +3$", stats, re.M)
    assert re.search(r"^identities +both hold$", stats, re.M)
    assert re.search(r"^completed +3 of 7 URLs", orb("describe", "crawl", "docs"), re.M)
    explained = orb("explain", "docs", "http://elsewhere.test/x")
    assert "It would be excluded" in explained
    assert re.search(r"^NO +other_host", explained, re.M)
    assert orb("lookup", "docs", "elsewhere.test", code=Exit.FAILED) == (
        "orb: the crawl 'docs' does not know https://elsewhere.test/\n"
    )


@pytest.mark.long
def test_hosts_keys_config_and_members_are_tended(running: Served, orb: Orb) -> None:
    key = orb("keys", "create", "ci", "--role", "viewer").strip()
    found = next(each for each in json.loads(orb("get", "keys", "-o", "json"))["items"] if each["name"] == "ci")
    assert key.startswith(f"orb_{found['id']}_")
    assert orb("get", "crawls", "--key", key, "-o", "name") == ""
    said = orb("create", "docs", "http://a.test/", "--key", key, code=Exit.FAILED)
    assert said == "orb: this needs the role operator, and the key 'ci' has viewer\n"
    assert orb("keys", "revoke", "ci") == "key/ci revoked\n"
    assert "orb ctl login" in orb("get", "crawls", "--key", key, code=Exit.FAILED)
    assert orb("config", "set", "worker.max_visits=9") == "config/1 configured\n"
    assert orb("config", "set", "worker.max_visits=9") == "config/1 unchanged\n"
    assert yaml.safe_load(orb("config", "get"))["worker"]["max_visits"] == 9
    assert "worker.max_visits=9" in orb("get", "config-revisions")
    assert "worker.max_visits" in orb("config", "set", "worker.max_visits=-9", code=Exit.USAGE)
    orb("config", "set", "storage.low_watermark_ratio=0.5", "storage.high_watermark_ratio=0.6")
    shown = orb("get", "config", "worker.max_visits", "storage.low_watermark_ratio", "log_level").splitlines()
    assert [line.split()[:4] for line in shown[1:]] == [
        ["worker.max_visits", "9", "9", "1024"],
        ["storage.low_watermark_ratio", "0.5", "0.5", "0.9"],
        ["log_level", "-", "-", "info"],
    ]
    assert "1 to 100000" in shown[1]
    assert "ratio  over 0, to 1" in shown[2]
    assert "debug,info,warning,error" in shown[3]
    assert orb("get", "config", "worker.max_visits", "-o", "name") == "config/worker.max_visits\n"
    assert "shards" in orb("describe", "config", "worker.max_visits")
    unset = ("config", "unset", "worker.max_visits", "storage.low_watermark_ratio")
    assert "storage.low_watermark_ratio" in orb(*unset, code=Exit.USAGE)
    assert yaml.safe_load(orb("config", "get"))["worker"]["max_visits"] is None
    assert orb("config", "unset", "storage.high_watermark_ratio") == "config/storage.high_watermark_ratio unset\n"
    assert "did you mean worker.max_visits?" in orb("config", "unset", "max_visits", code=Exit.FAILED)
    assert "did you mean worker.report_s?" in orb("get", "config", "worker.reports_s", code=Exit.FAILED)
    assert re.search(r"^m1 +active", orb("get", "masters"), re.M)
    block = ("hosts", "block", "a.test", "--reason", "by mail")
    assert orb(*block, "--for", "2h").startswith("host/a.test is blocked until 2")
    assert orb(*block).startswith("host/a.test is blocked until it is unblocked")
    excluded = orb("exclude", "A.test.", "https://b.test/x", "--reason", "asked by mail", "--for", "7d")
    assert "exclusion/1 created: no crawl requests a.test\n" in excluded
    assert "exclusion/1 replaced" in orb("exclude", "a.test", "--reason", "again", "--withdraw")
    shown = json.loads(orb("get", "exclusion", "1", "-o", "json"))
    assert (shown["reason"], shown["until"], shown["withdraw"]) == ("again", None, True)
    assert "https://b.test/x" in orb("get", "exclusions")
    assert "is not a host" in orb("exclude", "*.test", "--reason", "x", code=Exit.USAGE)
    assert orb("delete", "exclusion", "1") == "exclusion/1 deleted\n"
    assert "a.test" not in orb("get", "exclusions", "--target", "https://b.test/x")
    assert orb("hosts", "delay", "a.test", "5").startswith("host/a.test gets a request at most every 5 s\n")
    assert orb("hosts", "slots", "A.test", "2").startswith("host/A.test has at most 2 of its URL shards out at a time")
    assert re.search(r"^a.test +5s +yes +- +2 +by mail", orb("get", "host-policies"), re.M)
    assert "a.test is unblocked" in orb("hosts", "unblock", "a.test")
    assert orb("hosts", "slots", "a.test", "0").startswith("host/a.test has no limit of slots any more")
    policy = json.loads(orb("get", "host-policy", "a.test", "-o", "json"))
    assert (policy["delay_s"], policy["block"], policy["slots"]) == (5, None, None)
    assert orb("hosts", "delay", "a.test", "0").startswith("host/a.test has no operator's delay any more")
    assert orb("get", "host-policies", "-o", "name") == "", "a policy without any part is deleted"
    assert "slots" in orb("hosts", "slots", "a.test", "65", code=Exit.USAGE)
    orb("hosts", "delay", "b.test", "5")
    assert orb("delete", "host-policies", "b.test") == "host-policy/b.test deleted\n"
    assert "config.replace" in orb("get", "audit", "--action", "config.")


def test_policies_created_at_once_by_two_commands_lose_nothing(
    running: Served, orb: Orb, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask, others = Client.ask, [("delay", "a.test", "5"), ("slots", "a.test", "2")]

    def late(client: Client, method: str, at: str, **more: Any) -> ClientResponse:
        if method == "PUT" and others:
            orb("hosts", *others.pop())
        return ask(client, method, at, **more)

    monkeypatch.setattr(Client, "ask", late)
    assert "host/a.test is blocked" in orb("hosts", "block", "a.test", "--reason", "by mail")
    policy = json.loads(orb("get", "host-policy", "a.test", "-o", "json"))
    assert (policy["delay_s"], policy["block"]["reason"], policy["slots"]) == (5, "by mail", 2)


def test_seed_sets_are_put_from_files_listed_and_deleted(running: Served, orb: Orb, tmp_path: Path) -> None:
    orb("create", "docs", "http://a.test/")
    file = tmp_path / "set.yaml"
    file.write_text(
        "kind: seed-set\ncrawl: docs\nname: one\nseeds: [http://b.test/, {url: http://c.test/, priority: 5}]"
    )
    assert orb("seeds", "set", "docs", "one", "-f", str(file)) == "seed-set/docs/one created\n"
    assert re.search(r"^one +2 ", orb("get", "seed-sets", "-c", "docs"), re.M)
    shown = json.loads(orb("get", "seed-set", "one", "-c", "docs", "-o", "json"))
    assert shown["seeds"] == ["http://b.test/", {"url": "http://c.test/", "priority": 5}]
    assert "its name is 'one'" in orb("seeds", "set", "docs", "two", "-f", str(file), code=Exit.USAGE)
    file.write_text("seeds: [ftp://b.test/]")
    assert "seeds[0].url" in orb("seeds", "set", "docs", "one", "-f", str(file), code=Exit.USAGE)
    file.write_text("[http://b.test/]")
    assert "expected a mapping with `seeds`" in orb("seeds", "set", "docs", "one", "-f", str(file), code=Exit.USAGE)
    file.write_text("seeds: []")
    assert orb("seeds", "set", "docs", "one", "-f", str(file)) == "seed-set/docs/one configured\n"
    assert orb("seeds", "set", "docs", "one", "-f", str(file)) == "seed-set/docs/one unchanged\n"
    assert "write CRAWL/SET" in orb("delete", "seed-set", "one", code=Exit.USAGE)
    assert orb("delete", "seed-sets", "docs/one") == "seed-set/docs/one deleted\n"
    assert orb("get", "seed-sets", "-c", "docs", "-o", "name") == ""


def test_events_are_told_and_followed(running: Served, orb: Orb, capfd: pytest.CaptureFixture[str]) -> None:
    orb("create", "docs", "http://a.test/")

    def tell(action: str) -> None:
        event = {
            "type": "event/1", "kind": "crawl", "about": "1", "action": action, "at_ms": 1_893_456_000_000,
            "member": "m1", "crawl": "docs", "data": {"state": "running", "reason": None, "created_at_ms": 1},
        }  # fmt: skip
        assert running.events is not None
        publish = running.events.publish(event_subject(EventKind.CRAWL, "1"), json.dumps(event).encode(), action)
        asyncio.run_coroutine_threadsafe(publish, running.loop).result(30)

    for action in ("started", "paused\x1b[2J"):
        tell(action)
    assert orb("logs", "docs") == (
        "2030-01-01 00:00:00 UTC  crawl started         docs  state=running\n"
        "2030-01-01 00:00:00 UTC  crawl paused\\x1b[2J   docs  state=running\n"
    )
    first = json.loads(orb("events", "-o", "json").splitlines()[0])
    assert (first["kind"], first["data"]["action"]) == ("crawl", "started")
    assert orb("events", "--since", first["id"]).count("\n") == 1
    telling = threading.Timer(0.2, tell, ["deleted"])
    telling.start()
    try:
        said = orb("logs", "docs", "-f", "--since", first["id"])
    finally:
        telling.join()
    assert [line.split()[4] for line in said.splitlines()] == ["paused\\x1b[2J", "deleted"]


def test_a_login_is_tried_kept_for_its_owner_and_forgotten(
    running: Served, orb: Orb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ORB_SERVER")
    monkeypatch.delenv("ORB_API_KEY")
    assert "no server given" in orb("get", "crawls", code=Exit.USAGE)
    wrong = f"orb_{'0' * 16}_{'x' * 43}"
    assert "is not known" in orb("login", "--server", running.url, "--key", wrong, code=Exit.FAILED)
    file = tmp_path / "config" / "orb" / "ctl.yaml"
    assert not file.exists()
    orb("login", "--server", running.url, "--key", running.keys[Role.VIEWER])
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    orb("login", "--server", running.url, "--key", running.keys[Role.ADMIN], "--context", "admin")
    assert orb("contexts") == f"* admin  {running.url}\n  default  {running.url}\n"
    orb("get", "keys")
    assert "needs the role admin" in orb("get", "keys", "--context", "default", code=Exit.FAILED)
    orb("use", "default")
    assert "needs the role admin" in orb("get", "keys", code=Exit.FAILED)
    elsewhere = orb("get", "crawls", "--server", running.url.replace("127.0.0.1", "localhost"), code=Exit.FAILED)
    assert "the request has no API key" in elsewhere
    orb("logout")
    orb("logout", "--context", "admin")
    assert "no server given" in orb("get", "crawls", code=Exit.USAGE)


def test_masters_that_cannot_help_are_passed_over(
    running: Served, orb: Orb, tmp_path: Path, file: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A dead address, a replica without a leader, and one that leads."""
    with socket.socket() as silent, served(tmp_path, None, plane=Follower(None)) as replica:
        silent.bind(("127.0.0.1", 0))  # and nobody listens there
        dead = f"http://127.0.0.1:{silent.getsockname()[1]}"
        keys = ("--key", running.keys[Role.ADMIN])
        assert "no master answers" in orb("get", "crawls", "--server", dead, code=Exit.ENVIRONMENT)
        assert orb("apply", "-f", file, "--server", f"{dead},{running.url}", *keys) == "crawl/docs created\n"
        said = orb(
            "create", "x", "http://a.test/", "--server", replica.url, "--key", replica.keys[Role.ADMIN],
            "--patience", "0.1", code=Exit.ENVIRONMENT,
        )  # fmt: skip
        assert "there is no leader at the moment" in said


def test_interrupted_output_is_no_error(running: Served, orb: Orb, monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone:
        def write(self, text: str) -> int:
            raise BrokenPipeError

        def isatty(self) -> bool:
            return False

        def flush(self) -> None: ...

        def fileno(self) -> int:
            return 1

    orb("create", "docs", "http://a.test/", "--no-start")
    arguments: list[Any] = ["ctl", "get", "crawls"]
    with monkeypatch.context() as patched:
        patched.setattr("sys.stdout", Gone())
        patched.setattr("os.dup2", lambda *files: None)
        assert main(arguments) == 141


def test_an_answer_that_its_disk_does_not_take_ends_with_one_sentence(
    running: Served, orb: Orb, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    orb("create", "docs", "http://a.test/", "--no-start")
    for arguments in (["get", "crawls"], ["get", "crawls", "-o", "json"]):
        with Path("/dev/full").open("w") as full, monkeypatch.context() as patched:
            patched.setattr("sys.stdout", full)
            assert main(["ctl", *arguments]) == Exit.ENVIRONMENT, arguments
        err = capfd.readouterr().err
        assert err.startswith("orb: the output was cut short (No space left on device); make room")
        assert err.count("\n") == 1


NIGHTLY = """\
name: nightly
crawl: docs
verb: start
cron: 30 2 * * *
zone: Europe/Berlin
"""


@pytest.mark.long
def test_schedule_is_applied_described_paused_and_deleted(
    running: Served, orb: Orb, tmp_path: Path, file: Path
) -> None:
    nightly = tmp_path / "nightly.yaml"
    nightly.write_text(NIGHTLY)
    refused = orb("apply", "-f", nightly, code=Exit.USAGE)
    assert "schedule nightly" in refused
    assert "there is no crawl 'docs'" in refused
    assert "schedule/nightly would be created" in orb("apply", "-f", nightly, "--dry-run")
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(NIGHTLY.replace("Europe/Berlin", "Europe/Berlinn"))
    for options in (["--dry-run"], []):
        refused = orb("apply", "-f", wrong, "-f", file, *options, code=Exit.USAGE)
        assert "schedule nightly" in refused
        assert "did you mean Europe/Berlin?" in refused
    assert "docs" not in orb("get", "crawls"), "a schedule is checked before any crawl is created"
    # The crawl comes first, in whatever order the files are named.
    assert orb("apply", "-f", nightly, "-f", file) == "crawl/docs created\nschedule/nightly created\n"
    assert orb("apply", "-f", nightly) == "schedule/nightly unchanged\n"
    nightly.write_text(NIGHTLY + "catch_up: last\n")
    planned = orb("apply", "-f", nightly, "--dry-run")
    assert "schedule/nightly would change" in planned
    assert "+ catch_up: last" in planned
    assert orb("apply", "-f", nightly) == "schedule/nightly configured\n"
    shown = yaml.safe_load(orb("get", "schedule", "nightly", "-o", "yaml"))
    assert (shown["cron"], shown["catch_up"], len(shown["next_firings"])) == ("30 2 * * *", "last", 10)
    nightly.write_text(yaml.safe_dump(shown))
    assert orb("apply", "-f", nightly) == "schedule/nightly unchanged\n"
    assert re.search(r"^nightly +start +docs +30 2 \* \* \*", orb("get", "schedules"), re.M)
    assert "nightly" not in orb("get", "schedules", "-c", "other")
    assert orb("schedules", "pause", "nightly") == "schedule/nightly paused\n"
    assert "next_firings" not in orb("describe", "schedule", "nightly")
    assert orb("schedules", "resume", "nightly") == "schedule/nightly resumed\n"
    assert "next_firings" in orb("describe", "schedule", "nightly")
    assert orb("delete", "schedule", "nightly") == "schedule/nightly deleted\n"
