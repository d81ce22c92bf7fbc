"""Clients of a cluster's API who know all masters: one never stops reading, others write and keep count."""

import re
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Self

import httpx

from tests.support.processes.cluster import Cluster

FIRST_KEY: Final = "the first admin key, shown this once: "
_FIRST: Final = re.compile(f"{re.escape(FIRST_KEY)}(.+)\n")
LEADERLESS_S: Final = 30.0
PATIENCE_S: Final = 3.0
"""After which another master is asked. One that was stopped takes connections and says nothing."""

KEPT: Final = httpx.Limits(keepalive_expiry=2.0)
"""A connection that rests is given up long before a master closes it: a request that meets the closing fails."""


def address(cluster: Cluster, name: str) -> str:
    """Where a master's API is, as its newest process said itself."""
    cluster.wait_until(lambda: bool(cluster.said(name, "master.started")), f"{name} has started")
    return f"http://{cluster.said(name, 'master.started')[-1]['address']}"


def admin(cluster: Cluster) -> dict[str, str]:
    """The header with the first key, which one master shows once: perhaps after another one has started."""

    def shown() -> list[str]:
        return [found for member in cluster.members.values() for found in _FIRST.findall(member.log.read_text())]

    cluster.wait_until(lambda: shown() != [], "the first key is shown")
    (key,) = shown()
    return {"Authorization": f"Bearer {key}"}


class Patient(httpx.HTTPTransport):
    """Repeats what is refused for want of a leader, as the refusal itself advises: under one Idempotency-Key."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(limits=KEPT, **settings)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if request.method == "POST":
            request.headers.setdefault("Idempotency-Key", uuid.uuid4().hex)
        deadline = time.monotonic() + LEADERLESS_S
        while True:
            response = super().handle_request(request)
            if response.status_code != 503 or time.monotonic() > deadline:
                return response
            response.read()
            response.close()
            if not response.json()["type"].endswith("no-leader"):
                return response
            time.sleep(0.1)


def asking(cluster: Cluster, name: str, *, timeout_s: float = 20) -> httpx.Client:
    """A client of one master with the first admin key. It waits while no master leads: a machine that stood still for a
    moment is no failure of a test that is not about leaders."""
    return httpx.Client(base_url=address(cluster, name), headers=admin(cluster), timeout=timeout_s, transport=Patient())


@dataclass(frozen=True, slots=True)
class Answer:
    """What a master said: when it was asked and had answered (time.monotonic)."""

    asked: float
    answered: float
    master: str
    status: int
    body: Any


@dataclass(slots=True)
class History:
    """What happened to requests: the answers, and those that no master answered, with what each of them said."""

    answers: list[Answer] = field(default_factory=list)
    unanswered: list[tuple[float, dict[str, str]]] = field(default_factory=list)

    def failed(self) -> list[object]:
        """Whatever was not a success."""
        refused = [answer for answer in self.answers if not 200 <= answer.status < 300]
        return [*self.unanswered, *refused]


class AnyMaster:
    """Asks the masters one after another until one answers; the one that did is asked first the next time."""

    def __init__(self, cluster: Cluster, names: list[str]) -> None:
        self.history = History()
        self._names = names
        self._key = admin(cluster)
        self._addresses: dict[str, str] = {}
        self._cluster = cluster
        self._client = httpx.Client(timeout=PATIENCE_S, limits=KEPT)
        self.refresh()

    def refresh(self) -> None:
        """Look where the masters are: one that was started again listens elsewhere."""
        self._addresses = {name: address(self._cluster, name) for name in self._names}

    def ask(self, method: str, path: str, body: object = None, **headers: str) -> Answer | None:
        """The answer of the first that gives one other than that it cannot now (502, 503, 504); None when none does."""
        said: dict[str, str] = {}
        asked = time.monotonic()
        for name in list(self._names):
            try:
                got = self._client.request(
                    method, self._addresses[name] + path, json=body, headers={**self._key, **headers}
                )
            except httpx.HTTPError as error:
                said[name] = repr(error)
            else:
                if got.status_code not in (502, 503, 504):
                    answer = Answer(asked, time.monotonic(), name, got.status_code, got.json() if got.content else None)
                    self.history.answers.append(answer)
                    return answer
                said[name] = f"{got.status_code} {got.text}"
            self._names.remove(name)
            self._names.append(name)
        self.history.unanswered.append((asked, said))
        return None

    def close(self) -> None:
        self._client.close()


class Background:
    """Does something again and again on a thread for as long as the block lasts, and hands on what went wrong."""

    def __init__(self, act: Callable[[], object], pause_s: float) -> None:
        self._act = act
        self._pause_s = pause_s
        self._over = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        if self._error is None:
            return
        if error is None:
            raise self._error
        error.add_note("and before that, in the background:\n" + "".join(traceback.format_exception(self._error)))

    def _run(self) -> None:
        try:
            while not self._over.wait(self._pause_s):
                self._act()
        except BaseException as error:  # raised where the block ends
            self._error = error


@contextmanager
def reading(cluster: Cluster, *names: str, path: str = "/v1/crawls", pause_s: float = 0.05) -> Iterator[AnyMaster]:
    """Read `path` all the time, from any master that answers."""
    reader = AnyMaster(cluster, list(names))
    try:
        with Background(lambda: reader.ask("GET", path), pause_s):
            yield reader
    finally:
        reader.close()


@contextmanager
def client(cluster: Cluster, *names: str) -> Iterator[AnyMaster]:
    """A client of these masters."""
    made = AnyMaster(cluster, list(names))
    try:
        yield made
    finally:
        made.close()


def until_written(someone: AnyMaster, cluster: Cluster, method: str, path: str, body: object, key: str) -> Answer:
    """Repeat a write under one Idempotency-Key until a master has carried it out."""
    found: list[Answer] = []

    def written() -> bool:
        answer = someone.ask(method, path, body, **{"Idempotency-Key": key})
        if answer is not None:
            assert 200 <= answer.status < 300, answer
            found.append(answer)
        return bool(found)

    cluster.wait_until(written, f"{method} {path} is carried out")
    return found[0]
