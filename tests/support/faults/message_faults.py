"""Faults of the messages between workers and owners, injected with the broker's token.

Messages are unreadable, repeated or in another order, or the store has no space for them.
"""

import asyncio
import random
import threading
import time
from collections import deque
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.js.errors import APIError, NotFoundError

from shared.adapters.nats.client import PlainClient
from shared.adapters.nats.server import Endpoint
from shared.domain.errors import Transient
from shared.domain.ids import Partition
from shared.wire.subjects import COMMANDS, REPORT_SUBJECTS, report, visits_filter
from tests.support.engines.nats_server import POOL, persist
from tests.support.processes.cluster import PARTITIONS

T = TypeVar("T")

KEPT: Final = 400
"""Of the latest letters: those that come again."""
PATIENCE_S: Final = 30.0
"""For letters that must come."""
_BALLAST: Final = "BALLAST"
_PIECE: Final = bytes(1 << 19)
_ANSWER_S: Final = 2.0
_OCCUPIED_SLOT: Final = 9
"""A slot that no owner uses."""


class MessageListener:
    """Listens from its making until it is closed, on a thread of its own."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.unreadable: list[bytes] = []
        """Return the published reports that no owner can read."""
        self.noise: list[bytes] = []
        """The same of shards."""
        self.heard = 0
        """Letters that came by, of whatever kind."""
        self.repeated = 0
        """Letters that were published again."""
        self._endpoint = endpoint
        self._seen: deque[tuple[str, bytes]] = deque(maxlen=KEPT)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="post", daemon=True)
        self._thread.start()
        self._client: Client = self._run(self._connected())

    def close(self) -> None:
        self._run(self._client.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def wait_for(self, letters: int) -> None:
        """Until so many have come: the broker passes them on after it answered their publisher.

        Raises:
            TimeoutError: Fewer came within `PATIENCE_S`.
        """
        until = time.monotonic() + PATIENCE_S
        while len(self._seen) < letters:
            if time.monotonic() > until:
                raise TimeoutError(f"{len(self._seen)} of {letters} letters came within {PATIENCE_S} s")
            time.sleep(0.01)

    # --- what is done -------------------------------------------------------------------------------------------------

    def corrupt(self, draw: int) -> None:
        """To every partition and both kinds of report: noise, nothing at all, and the beginning of a real letter; and
        noise to workers, as a shard."""
        drawn = random.Random(draw)
        self._run(self._corrupt(drawn))

    def repeat(self, draw: int) -> None:
        """Publish the latest letters again, in a drawn order."""
        drawn = random.Random(draw)
        self._run(self._again(drawn))

    @contextmanager
    def full(self) -> Iterator[None]:
        """The broker's store takes nothing more for the block."""
        self._run(self._filled())
        try:
            yield
        finally:
            self._run(self._emptied())

    # --- how ----------------------------------------------------------------------------------------------------------

    async def _connected(self) -> Client:
        async def silent(error: Exception) -> None:
            """The broker is struck as well; the client comes back by itself."""

        client = PlainClient()  # whose flush waits for what was said before it; that of the library's own does not
        await client.connect(
            self._endpoint.url,
            user=self._endpoint.master.user,
            password=self._endpoint.master.password,
            max_reconnect_attempts=-1,
            reconnect_time_wait=0.1,
            error_cb=silent,
        )
        for subject in (*REPORT_SUBJECTS, COMMANDS, visits_filter(POOL)):
            await client.subscribe(subject, cb=self._heard)
        await client.flush()  # the server answers once it has the subscriptions: what is published from here on comes
        return client

    async def _heard(self, message: Msg) -> None:
        self.heard += 1
        self._seen.append((message.subject, message.data))

    async def _corrupt(self, drawn: random.Random) -> None:
        reports = [data for subject, data in self._seen if subject.startswith("reports.") and len(data) > 1]
        shards = [subject for subject, _ in self._seen if subject.startswith("visits.")]
        for partition in range(PARTITIONS):
            for kind in ("outcome", "discovery"):
                letters = [drawn.randbytes(drawn.randrange(8, 200)), b""]
                if reports:
                    whole = drawn.choice(reports)
                    letters.append(whole[: drawn.randrange(1, len(whole))])
                for letter in letters:
                    await self._published(report(Partition(partition), kind), letter, drawn)
                    self.unreadable.append(letter)
        for subject in sorted({subject.rpartition(".")[0] for subject in shards})[:PARTITIONS]:
            noise = drawn.randbytes(50)
            if await self._published(f"{subject}.{_OCCUPIED_SLOT}", noise, drawn):
                self.noise.append(noise)

    async def _again(self, drawn: random.Random) -> None:
        letters = list(self._seen)
        drawn.shuffle(letters)
        for subject, data in letters:
            if data not in self.unreadable and await self._published(subject, data, drawn):
                self.repeated += 1

    async def _published(self, subject: str, data: bytes, drawn: random.Random) -> bool:
        """Until the broker has it, once; False where the subject is occupied."""
        headers = {"Nats-Msg-Id": drawn.randbytes(8).hex()}

        async def once() -> bool:
            try:
                await self._client.jetstream().publish(subject, data, timeout=_ANSWER_S, headers=headers)
            except APIError as error:
                if error.err_code == 10077:
                    return False
                raise Transient(str(error)) from error
            except (NatsError, TimeoutError, OSError) as error:
                raise Transient(str(error)) from error
            return True

        return await persist(once)

    async def _filled(self) -> None:
        stream = self._client.jetstream()
        await persist(lambda: _patient(stream.add_stream(name=_BALLAST, subjects=["ballast"])))

        async def once() -> bool:
            """Whether one more piece found room."""
            try:
                await stream.publish("ballast", _PIECE, timeout=_ANSWER_S)
            except APIError as error:
                if error.err_code != 10023:
                    raise
                return False
            except (NatsError, TimeoutError, OSError) as error:
                raise Transient(str(error)) from error
            return True

        while await persist(once):
            pass

    async def _emptied(self) -> None:
        async def once() -> None:
            try:
                await _patient(self._client.jetstream().delete_stream(_BALLAST))
            except NotFoundError:
                return

        await persist(once)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(120)


async def _patient(work: Coroutine[Any, Any, T]) -> T:
    """Transient where the broker did not answer."""
    try:
        return await work
    except NotFoundError:
        raise
    except (NatsError, TimeoutError, OSError) as error:
        raise Transient(str(error)) from error
