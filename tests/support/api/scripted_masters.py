"""Masters that say what a test lets them say, for `orb ctl`: no socket, and a clock that moves only by waiting."""

import argparse
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Literal

import httpx

from cli.ctl.client import Client
from cli.ctl.command import carried_out, configure
from cli.ctl.contexts import Access
from cli.ctl.output import CtlOutput
from cli.ctl.verb_context import VerbContext

NOW: Final = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)

Say = httpx.Response | httpx.RequestError
Answering = Callable[[httpx.Request], Say]


def problem(status: int, kind: str, detail: str = "no", **more: Any) -> httpx.Response:
    """A refusal, as masters write it."""
    headers = more.pop("headers", {})
    body = {"type": f"urn:orbweaver:problem:{kind}", "title": "t", "status": status, "detail": detail, **more}
    content = json.dumps(body)
    return httpx.Response(status, content=content, headers={"Content-Type": "application/problem+json", **headers})


def listing(items: Sequence[Mapping[str, Any]], following: str | None = None) -> httpx.Response:
    """A page of a list."""
    return httpx.Response(200, json={"items": items, "next": following})


@dataclass
class Masters:
    """The masters `http://m1`, `http://m2`, ...: `answer` speaks for them all, or a script of answers in order."""

    answer: Answering | Sequence[Say]
    count: int = 1
    patience_s: float = 30.0
    key: str | None = "k"
    asked: list[httpx.Request] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    now: float = 0.0
    code: int | None = None

    def client(self) -> Client:
        """A client of them, whose waits take no time."""

        def sleep(seconds: float) -> None:
            assert seconds >= 0
            self.now += seconds

        servers = tuple(f"http://m{number}" for number in range(1, self.count + 1))
        return Client(
            Access(servers, self.key),
            patience_s=self.patience_s,
            note=self.notes.append,
            transport=httpx.MockTransport(self._respond),
            sleep=sleep,
            now=lambda: self.now,
        )

    def run(self, *argv: str, form: Literal["table", "wide", "json", "yaml", "name"] = "table", width: int = 0) -> str:
        """What `orb ctl ARGV` writes; raises what ends it. `width` is a terminal's."""
        parser = argparse.ArgumentParser()
        configure(parser)
        arguments = parser.parse_args(argv)
        out = io.StringIO()
        with self.client() as client:
            self.code = carried_out(
                arguments.carry_out,
                VerbContext(client, CtlOutput(form, out=out, width=width or None, now=NOW)),
                arguments,
            )
        return out.getvalue()

    @property
    def told(self) -> list[str]:
        """Return the requests that the masters got: `m1 GET /v1/crawls`."""
        return [f"{each.url.host} {each.method} {each.url.raw_path.decode()}" for each in self.asked]

    def _respond(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request)
        if callable(self.answer):
            said = self.answer(request)
        else:
            assert len(self.asked) <= len(self.answer), f"asked too often: {self.told}"
            said = self.answer[len(self.asked) - 1]
        if isinstance(said, httpx.Response):
            return said
        raise said
