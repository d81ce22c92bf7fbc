"""The Terraform provider and an API that is down, slow, of another release, or no API; and its own configuration."""

import asyncio
import json
import signal
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil
import pytest

from cli.dev.terraform import EXECUTABLE, install
from tests.support.engines.certificates import OPENSSL, authority, signed
from tests.support.terraform.core import UNKNOWN, Failed, Plugin, Resource
from tests.support.terraform.scripted_api import NO_ANSWER, Asked, Reply, refused, scripted

TOKEN = "orb_0123456789abcdef_secret-of-this-key"
SPEC = json.dumps({"seeds": ["https://example.org/"]})
CRAWL = {"name": "docs", "spec": SPEC}
SHOWN: dict[str, Any] = {
    "name": "docs", "id": 7, "revision": 1, "created_at": "2030-01-01T00:00:00Z",
    "labels": {}, "spec": json.loads(SPEC), "desired": None, "drifted": False,
}  # fmt: skip
PLAN = {"action": "create", "changes": [], "warnings": []}
STATE: dict[str, Any] = {
    "name": "docs", "spec": SPEC, "labels": {}, "desired": None, "start": True, "deletion_protection": False,
    "drifted": False, "id": "docs", "crawl_id": 7, "revision": 1, "created_at": "2030-01-01T00:00:00Z",
    "spec_digest": "0b2d9a4f6b8e7c1d",
}  # fmt: skip
CHANGED = {"labels": {"a": "b"}} | dict.fromkeys(("revision", "crawl_id", "drifted", "spec_digest"), UNKNOWN)
"""A planned change of labels."""


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plugin]:
    """A provider that each test configures. At its end, nothing that it said has the token."""
    running = Plugin({}, tmp_path_factory.mktemp("plugin") / "errors")
    yield running
    assert running.close() == 0
    assert "Traceback" not in running.log()
    assert "secret-of-this-key" not in running.log()


@pytest.fixture
def crawl(plugin: Plugin) -> Resource:
    return Resource(plugin, "orb_crawl", dict(STATE))


def asked(plugin: Plugin, answer: Callable[[Asked], Reply], call: Callable[[], Any], **config: Any) -> tuple[str, str]:
    """Make a call that must fail while the API answers so; return the only error's path and text."""
    with scripted(answer) as api:
        plugin.configure(**{"url": [api.url], "token": TOKEN, "retry_s": 1} | config)
        with pytest.raises(Failed) as failed:
            call()
    (found,) = failed.value.diagnostics
    assert TOKEN not in str(failed.value)
    return found.path, f"{found.summary} {found.detail}"


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (Reply(200, "<html>Welcome</html>", {"Content-Type": "text/html"}), "text/html that is not JSON"),
        (Reply(200, "{", {}), "application/json that is not JSON"),
        (Reply(200, [1]), "JSON that is no object"),
        (Reply(200, " " * (16 * 2**20 + 1)), "more than 16777216 bytes"),
        (Reply(404, "<html>", {"Content-Type": "text/html"}), "text/html that is not JSON"),
        (Reply(404, {"error": "nothing"}), "so it is not an Orbweaver API"),
        (Reply(301, {}, {"Location": "https://other.example/"}), "redirects to https://other.example/"),
        (Reply(502, "<html>", {"Content-Type": "text/html"}), "text/html that is not JSON"),
        (refused(503, "no-leader", "no leader is elected"), "No leader is elected"),
        (refused(401, "unauthenticated", "the key is not valid"), "The key is not valid. Set a valid API key"),
        (
            refused(403, "forbidden", "this needs the role operator"),
            "this needs the role operator. use a key with that role",
        ),
        (refused(500, "internal", "internal error"), "Internal error"),
        (Reply(NO_ANSWER), "No master answers at"),
        (Reply(200, {key: value for key, value in SHOWN.items() if key != "revision"}), "have the field `revision`"),
        (Reply(200, SHOWN | {"spec": "text"}), "cannot be read"),
        (refused(404, "not-found", "Not Found"), "does not have /v1/crawls"),
    ],
)
def test_read_that_fails_says_so_and_keeps_the_state(crawl: Resource, reply: Reply, words: str) -> None:
    _, said = asked(crawl.plugin, lambda _: reply, crawl.refresh)
    assert words.lower() in said.lower()
    assert crawl.state == STATE


def test_read_asks_for_a_plan_only_if_spec_or_state_changed(crawl: Resource) -> None:
    written_out = SHOWN | {"spec": {"seeds": ["https://example.org/"], "pool": "default"}}

    def answer(asked: Asked) -> Reply:
        return Reply(200, written_out if asked.method == "GET" else PLAN | {"action": "none"})

    assert crawl.state is not None
    with scripted(answer) as api:
        crawl.plugin.configure(url=[api.url], token=TOKEN)
        for expected in (["GET", "POST"], ["GET"], ["GET"]):
            crawl.refresh()
            assert (api.methods(), crawl.state["spec"]) == (expected, SPEC)
            api.asked.clear()
        crawl.state["spec"] = json.dumps({"seeds": ["https://edited.example/"]})
        crawl.refresh()
        assert api.methods() == ["GET", "POST"]


@pytest.mark.parametrize(
    ("shown", "changed"),
    [
        ({"state": "finished", "finished_reason": "complete"}, set()),
        ({"state": "running", "blocking_reason": "master m1: the database is full"}, set()),
        ({"state": "paused", "drifted": True}, {"drifted", "crawl_id", "revision", "spec_digest"}),
    ],
)
def test_only_what_the_api_calls_drifted_is_drift(crawl: Resource, shown: dict[str, Any], changed: set[str]) -> None:
    def answer(asked: Asked) -> Reply:
        return Reply(
            200, SHOWN | {"desired": "running"} | shown if asked.method == "GET" else PLAN | {"action": "none"}
        )

    assert crawl.state is not None
    crawl.state["desired"] = "running"
    with scripted(answer) as api:
        crawl.plugin.configure(url=[api.url], token=TOKEN)
        assert crawl.changes(**CRAWL, desired="running", deletion_protection=False) == changed


def test_api_that_is_down_fails_at_once_with_its_address(crawl: Resource) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        crawl.plugin.configure(url=[url], token=TOKEN, retry_s=3600)
        with pytest.raises(Failed, match=f"No master answers at {url} \\(.*[Cc]onnection refused.*Check `url`"):
            crawl.refresh()


def test_master_that_is_down_is_passed_over(crawl: Resource) -> None:
    with socket.socket() as taken, scripted(lambda _: Reply(200, SHOWN)) as api:
        taken.bind(("127.0.0.1", 0))
        down = f"http://127.0.0.1:{taken.getsockname()[1]}"
        crawl.plugin.configure(url=[down, api.url], token=TOKEN, retry_s=30)
        crawl.refresh()
    assert crawl.state is not None
    assert crawl.state["revision"] == 1


def test_slow_answer_is_given_up(crawl: Resource) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        crawl.plugin.configure(url=[url], token=TOKEN, request_timeout_s=1, retry_s=0)
        with pytest.raises(Failed, match=r"No master answers.*[Rr]ead timed out"):
            crawl.refresh()


def test_change_of_leader_is_waited_for(crawl: Resource) -> None:
    left = [refused(503, "no-leader", "no leader", **{"Retry-After": "0"})] * 3
    with scripted(lambda _: left.pop() if left else Reply(200, SHOWN)) as api:
        crawl.plugin.configure(url=[api.url], token=TOKEN, retry_s=30)
        crawl.refresh()
        assert len(api.asked) == 4


def test_create_whose_answer_is_lost_is_repeated_under_its_key(plugin: Plugin) -> None:
    def answer(asked: Asked) -> Reply:
        if asked.path.endswith("/plan"):
            return Reply(200, PLAN)
        return Reply(201, SHOWN) if len(keys(api.asked)) == 3 else Reply(NO_ANSWER)

    def keys(requests: list[Asked]) -> list[str]:
        return [each.headers["Idempotency-Key"] for each in requests if each.path == "/v1/crawls"]

    with scripted(answer) as api:
        plugin.configure(url=[api.url], token=TOKEN, retry_s=30)
        assert Resource(plugin, "orb_crawl").apply(**CRAWL)["crawl_id"] == 7
        assert len(keys(api.asked)) == 3
        assert len(set(keys(api.asked))) == 1


def test_update_that_was_applied_without_an_answer_is_no_conflict(crawl: Resource) -> None:
    """The repeated PUT gets 412, since the first one was applied."""
    labels: dict[str, str] = {}

    def answer(asked: Asked) -> Reply:
        if asked.method == "GET":
            return Reply(200, SHOWN | {"labels": labels}, {"ETag": '"1"'})
        assert (asked.method, asked.headers["If-Match"]) == ("PUT", '"1"')
        if labels:
            return refused(412, "lost-update", "it was changed")
        labels["a"] = "b"
        return Reply(NO_ANSWER)

    with scripted(answer) as api:
        crawl.plugin.configure(url=[api.url], token=TOKEN, retry_s=30)
        assert crawl.applied(STATE | CHANGED)["labels"] == {"a": "b"}
        assert api.methods() == ["GET", "PUT", "PUT", "GET"]


def test_key_that_ends_in_the_middle_keeps_what_was_made(crawl: Resource) -> None:
    ended: list[bool] = []

    def answer(asked: Asked) -> Reply:
        if ended:
            return refused(401, "unauthenticated", "the key is not valid")
        if asked.path.endswith("/plan"):
            return Reply(200, PLAN)
        ended.extend([True] * (asked.method == "POST"))
        return Reply(201 if asked.method == "POST" else 200, SHOWN)

    made = Resource(crawl.plugin, "orb_crawl")
    with scripted(answer) as api:
        crawl.plugin.configure(url=[api.url], token=TOKEN, retry_s=30)
        crawl.refresh()
        assert made.apply(**CRAWL)["id"] == "docs"
        with pytest.raises(Failed, match=r"key is not valid\. Set a valid API key as `token`"):
            crawl.applied(STATE | CHANGED)
    assert crawl.state is not None
    assert (crawl.state["crawl_id"], crawl.state["labels"]) == (7, {})


def test_stop_ends_a_wait_for_the_leader(crawl: Resource) -> None:
    def answer(_: Asked) -> Reply:
        crawl.plugin.call("StopProvider")
        return refused(503, "no-leader", "no leader", **{"Retry-After": "600"})

    _, said = asked(crawl.plugin, answer, crawl.refresh, retry_s=3600)
    assert "no leader" in said.lower()


@pytest.mark.parametrize("name", ["url", "token", "tls_ca", "tls_cert", "tls_key", "request_timeout_s", "retry_s"])
def test_plan_without_a_known_provider_configuration(plugin: Plugin, name: str) -> None:
    """A plan comes without the API, and leaves what exists as it is."""
    known = {"url": ["http://127.0.0.1:1"], "token": TOKEN}
    for unknown in (UNKNOWN, [UNKNOWN]) if name == "url" else (UNKNOWN,):
        plugin.configure(**known | {name: unknown})
        assert Resource(plugin, "orb_crawl").plan(**CRAWL)["name"] == "docs"
        existing = Resource(plugin, "orb_crawl", dict(STATE))
        assert existing.changes(**CRAWL) == {"deletion_protection"}
        with pytest.raises(Failed, match="configuration is not known yet"):
            plugin.source("orb_cluster")


@pytest.mark.parametrize(
    ("config", "path", "words"),
    [
        ({"url": []}, "url", "No master is given"),
        ({"url": ["ftp://a.example"]}, "url", "not that of a master"),
        ({"url": ["http://user:secret-of-this-key@a.example"]}, "url", "not that of a master"),
        ({"url": ["http://[::1"]}, "url", "not that of a master"),
        ({"token": "secret-of-this-key\u20ac"}, "token", "characters that no API key has"),
        ({"token": "secret-of-this-key\n"}, "token", "characters that no API key has"),
        ({"tls_ca": "/nowhere.pem"}, "tls_ca", "No such file"),
        ({"tls_cert": "/nowhere.pem"}, "tls_key", "belong together"),
        ({"tls_cert": "/nowhere.pem", "tls_key": "/nowhere.pem"}, "tls_cert", "No such file"),
        ({"request_timeout_s": 0}, "request_timeout_s", "less than 1"),
        ({"retry_s": -1}, "retry_s", "less than 0"),
        ({"retry_s": 0.5}, "retry_s", "not a whole number"),
        ({"retry_s": "0.1"}, "retry_s", "not a whole number"),
    ],
)
def test_provider_configuration_that_cannot_be_used(plugin: Plugin, config: Any, path: str, words: str) -> None:
    with pytest.raises(Failed, match=words) as failed:
        plugin.configure(**{"url": ["http://127.0.0.1:1"], "token": TOKEN} | config)
    assert [each.path for each in failed.value.diagnostics] == [path]
    assert "secret-of-this-key" not in str(failed.value)


def test_token_is_sensitive_and_is_sent_as_a_bearer(plugin: Plugin, crawl: Resource) -> None:
    assert {name for name, each in plugin.provider.items() if each.get("sensitive")} == {"token"}
    with scripted(lambda _: Reply(200, SHOWN)) as api:
        plugin.configure(url=[api.url], token=TOKEN)
        crawl.refresh()
        assert [each.headers["Authorization"] for each in api.asked] == [f"Bearer {TOKEN}"]
    assert TOKEN not in json.dumps(crawl.state)


@pytest.mark.skipif(OPENSSL is None, reason="the openssl command makes the certificates")
def test_master_is_reached_by_mutual_tls_alone(crawl: Resource, tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    ours.mkdir()
    theirs.mkdir()
    ca, other = authority(ours), authority(theirs)
    server, client = signed(ours, ca, "server"), signed(ours, ca, "client")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=ca.cert)
    context.load_cert_chain(server.cert, server.key)
    context.verify_mode = ssl.CERT_REQUIRED
    known = {"tls_ca": str(ca.cert), "tls_cert": str(client.cert), "tls_key": str(client.key)}
    with scripted(lambda _: Reply(200, SHOWN), context) as api:
        crawl.plugin.configure(url=[api.url], token=TOKEN, **known)
        crawl.refresh()
        for less in ({"tls_ca": str(other.cert)}, {"tls_ca": None}):
            crawl.plugin.configure(url=[api.url], token=TOKEN, retry_s=0, **known | less)
            with pytest.raises(Failed, match=r"The certificate of https\S+ is not accepted: .*Set `tls_ca`"):
                crawl.refresh()
        assert api.methods() == ["GET"]


@pytest.mark.skipif(OPENSSL is None, reason="the openssl command makes the certificates")
@pytest.mark.parametrize(
    ("certificate", "alert", "silence"),
    [
        ("none", "refuses the TLS connection: .*handshake failure", "No master answers at .*requires a client certifi"),
        ("expired", "refuses the client certificate: .*expired. Renew", r"certificate ended at 20\S+\. Renew"),
        ("stranger", "refuses the client certificate: unknown ca", "No master answers at .*`--tls-client-ca` signed"),
    ],
)
def test_client_certificate_that_is_refused_is_said(
    crawl: Resource, tmp_path: Path, certificate: str, alert: str, silence: str
) -> None:
    """A server may send an alert of TLS. Masters close the connection without one."""
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    ours.mkdir()
    theirs.mkdir()
    ca = authority(ours)
    server = signed(ours, ca, "server")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=ca.cert)
    context.load_cert_chain(server.cert, server.key)
    context.verify_mode = ssl.CERT_REQUIRED
    config: dict[str, Any] = {"tls_ca": str(ca.cert)}
    if certificate != "none":
        made = (
            signed(ours, ca, "own", days=-1) if certificate == "expired" else signed(theirs, authority(theirs), "own")
        )
        config |= {"tls_cert": str(made.cert), "tls_key": str(made.key)}
    with closing_without_alert(context) as url:
        crawl.plugin.configure(url=[url], token=TOKEN, retry_s=0, **config)
        with pytest.raises(Failed, match=silence):
            crawl.refresh()
    context.maximum_version = ssl.TLSVersion.TLSv1_2  # later versions may lose the alert with the request
    with scripted(lambda _: Reply(200, SHOWN), context) as api:
        crawl.plugin.configure(url=[api.url], token=TOKEN, retry_s=3600, **config)
        with pytest.raises(Failed, match=alert):
            crawl.refresh()


@contextmanager
def closing_without_alert(context: ssl.SSLContext) -> Iterator[str]:
    """Serve TLS as masters do, until the block ends: a connection that is refused is closed without an alert."""

    async def serve() -> None:
        server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=context)
        async with server:
            found.set_result((asyncio.get_running_loop(), server.sockets[0].getsockname()[1]))
            await ended.wait()

    found, ended = Future[tuple[asyncio.AbstractEventLoop, int]](), asyncio.Event()
    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    loop, port = found.result(30)
    try:
        yield f"https://127.0.0.1:{port}"
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join(30)


def test_plugin_ends_with_a_terraform_that_was_killed(tmp_path: Path) -> None:
    with TemporaryDirectory() as folder:  # the path of a socket has at most 107 characters
        orphan = Plugin({"TMPDIR": folder}, tmp_path / "errors")
        (process,) = psutil.Process(orphan.process.pid).children()
        assert EXECUTABLE in " ".join(process.cmdline()) or "main.py" in " ".join(process.cmdline())
        orphan.process.kill()
        assert orphan.close() == -signal.SIGKILL
        process.wait(60)
        assert list(Path(folder).iterdir()) == [], "its folder is removed"


def test_plugin_started_by_hand_says_what_it_is(tmp_path: Path) -> None:
    done = subprocess.run([install() / EXECUTABLE], capture_output=True, text=True, env={}, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert "a plugin that Terraform starts" in done.stderr
