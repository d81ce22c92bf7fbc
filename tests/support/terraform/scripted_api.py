"""An API that answers as a test says: at a real port, for what no master does on request."""

import json
import ssl
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

NO_ANSWER: Final = 0
"""As a status: the connection is closed without an answer."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as it arrived."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: Any


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer: JSON, or text as it is."""

    status: int
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)


def refused(status: int, kind: str, detail: str, **headers: str) -> Reply:
    """A problem as masters write it."""
    body = {"type": f"urn:orbweaver:problem:{kind}", "title": "t", "status": status, "detail": detail}
    return Reply(status, body, {"Content-Type": "application/problem+json", **headers})


@dataclass(slots=True)
class ScriptedApi:
    """`answer` decides; `asked` has every request."""

    answer: Callable[[Asked], Reply]
    url: str = ""
    asked: list[Asked] = field(default_factory=list)

    def methods(self) -> list[str]:
        return [each.method for each in self.asked]


@contextmanager
def scripted(answer: Callable[[Asked], Reply], tls: ssl.SSLContext | None = None) -> Iterator[ScriptedApi]:
    """Serve answers at a free port of the loopback address until the block ends, over TLS if there is a context."""
    api = ScriptedApi(answer)

    class Connection(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            content = self.rfile.read(length)
            asked = Asked(self.command, self.path, dict(self.headers), json.loads(content) if content else None)
            api.asked.append(asked)
            reply = api.answer(asked)
            self.close_connection = True
            if reply.status == NO_ANSWER:
                return
            data = reply.body.encode() if isinstance(reply.body, str) else json.dumps(reply.body).encode()
            self.send_response(reply.status)
            for name, value in {"Content-Type": "application/json", **reply.headers}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PUT = do_DELETE = _answer

        def log_message(self, format: str, *args: Any) -> None:
            """Write nothing."""

    class Server(ThreadingHTTPServer):
        def handle_error(self, request: Any, client_address: Any) -> None:
            """Leave a refused handshake to the client; show anything else."""
            if not isinstance(sys.exception(), OSError):
                super().handle_error(request, client_address)

    with Server(("127.0.0.1", 0), Connection) as server:
        api.url = f"http://127.0.0.1:{server.server_address[1]}"
        if tls is not None:
            api.url = api.url.replace("http:", "https:")
            server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield api
        finally:
            server.shutdown()
            thread.join(10)
