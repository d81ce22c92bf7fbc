"""The client of `orb ctl`: what it imports, and TLS against a server without it."""

import http.server
import io
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from cli.ctl.client import Client
from cli.ctl.contexts import Access
from cli.main import main
from cli.terminal.exits import Environment, Exit


def test_https_is_told_apart_where_the_server_speaks_http() -> None:
    class Plain(http.server.BaseHTTPRequestHandler):
        def log_message(self, format: str, *told: object) -> None: ...

    with http.server.HTTPServer(("127.0.0.1", 0), Plain) as server:
        serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        serving.start()
        try:
            at = f"127.0.0.1:{server.server_port}"
            with Client(Access((f"https://{at}",))) as client, pytest.raises(Environment) as ended:
                client.get("/v1/x")
        finally:
            server.shutdown()
            serving.join()
    assert str(ended.value) == f"https://{at} speaks http, not https: use http://{at}."


def test_key_that_cannot_be_sent_is_refused_at_once_and_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Commands retried for 30 s, and then printed the header with the key."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("ORB_SERVER", "http://127.0.0.1:9")
    monkeypatch.setenv("ORB_API_KEY", "orb_SECRET\rKEY")
    typed = io.StringIO("orb_SECRET\x1bKEY\n")
    for words in (["get", "crawls"], ["pause", "docs"], ["login"], ["login", "--unchecked"]):
        assert main(["ctl", *words]) == Exit.USAGE
        assert capfd.readouterr().err == (
            "orb: the key from ORB_API_KEY has characters that no API key has: copy the key again "
            "(`orb ctl login` replaces a stored key).\n"
        )
    monkeypatch.delenv("ORB_API_KEY")
    monkeypatch.setattr("sys.stdin", typed)
    assert main(["ctl", "login"]) == Exit.USAGE
    assert capfd.readouterr().err == (
        "orb: the key from standard input has characters that no API key has: copy the key again "
        "(`orb ctl login` replaces a stored key).\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_the_public_api_is_all_that_is_used() -> None:
    """What `orb ctl` can do any program can do: neither side of the wire is imported, nor any engine."""
    code = (
        "import sys; from cli.main import main; main(['ctl', '--help']); "
        "print(*(name for name in sys.modules if name.split('.')[0] in ('api', 'workers', 'sqlalchemy', 'nats', 'grpc')"
        " or name.startswith('shared.adapters')), file=sys.stderr)"
    )
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert done.stderr.split() == []
