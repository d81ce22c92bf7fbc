"""Keeps a member registered at the coordinator: its key exists under a session, which is replaced if it is lost."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from shared.domain.errors import OwnershipLost, Transient
from shared.ports.coordinator import Coordinator, Session

_AGAIN_S = 0.2


class Registration:
    """Keeps a member's key in the coordinator while `run` runs, under a session with a time to live of `ttl_s` seconds.

    `on_error` is called with a sentence each time a session is lost or cannot be opened. `lost` counts the lost
    sessions.
    """

    def __init__(
        self, coordinator: Coordinator, key: str, value: bytes, *, ttl_s: float, on_error: Callable[[str], None]
    ) -> None:
        self._coordinator = coordinator
        self._key = key
        self._value = value
        self._ttl_s = ttl_s
        self._on_error = on_error
        self._session: Session | None = None
        self.lost = 0
        self._changed = asyncio.Event()

    def change(self, value: bytes) -> None:
        """Set the value of the key, in the present session and in later ones. Return at once; `run` writes it."""
        self._value = value
        self._changed.set()

    def left_s(self, now: float) -> float:
        """Return the seconds after which the member's session ends if it is not renewed any more.

        Until then, other members regard this member as alive. Return 0 if there is no live session. `now` is the
        present time of `Clock.elapsed`.
        """
        session = self._session
        return max(0.0, session.ok_until - now) if session is not None and session.alive(now) else 0.0

    async def run(self, attached: Callable[[Session], Awaitable[None]] | None = None) -> None:
        """Keep a session open and the key registered, until cancelled.

        `attached` runs once in each session, after the key is registered. If the session is lost, `attached` is
        cancelled. The next session is opened after `attached` has ended. Raise Unusable if the coordinator refuses this
        client.
        """
        while True:
            try:
                async with self._coordinator.session(self._ttl_s) as session:
                    self._session = session
                    await self._live(session, attached)
                self.lost += 1
                self._on_error("the session was lost")
            except Transient as error:
                self._on_error(str(error))
                await asyncio.sleep(error.retry_in)
            except OwnershipLost as error:
                self.lost += 1
                self._on_error(str(error))
            await asyncio.sleep(_AGAIN_S)

    async def _live(self, session: Session, attached: Callable[[Session], Awaitable[None]] | None) -> None:
        self._changed.clear()
        await session.register(self._key, self._value)
        async with asyncio.TaskGroup() as group:
            running = [group.create_task(self._follow(session), name="session.register")]
            if attached is not None:
                running.append(group.create_task(_attach(session, attached), name="session.attached"))
            await session.lost()
            for task in running:
                task.cancel()

    async def _follow(self, session: Session) -> None:
        """Write each new value of the key, until cancelled or until the session is lost."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await session.register(self._key, self._value)
            except Transient as error:
                self._on_error(str(error))
                await asyncio.sleep(error.retry_in)
                self._changed.set()
            except OwnershipLost:
                return  # the next session registers it


async def _attach(session: Session, attached: Callable[[Session], Awaitable[None]]) -> None:
    """Call `attached` with the session. Ignore OwnershipLost: the session was lost meanwhile."""
    with contextlib.suppress(OwnershipLost):
        await attached(session)
