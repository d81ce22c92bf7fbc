"""A session: an etcd lease that is renewed at every third of its time to live, and the keys attached to it.

This process computes the end of the session by its own clock. It adds the time to live to the time when the last
answered renewal was *sent*. etcd counts from the arrival of the renewal, so the session ends here first.
"""

# A deposed etcd leader that has not noticed it yet may answer renewals for about an election timeout. So a leader of
# the crawler stops acting a margin before its session ends, and each of its writes checks that the leader's key is
# unchanged.

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator
from typing import Final, TypeVar

import etcd3.etcdrpc as rpc
import grpc
import structlog

from shared.adapters.etcd import requests
from shared.adapters.etcd.connection import EtcdConnection
from shared.adapters.etcd.errors import EtcdLeaseExpired, failure_of, stale_login
from shared.adapters.etcd.leadership import EtcdLeadership
from shared.adapters.etcd.watching import follow
from shared.domain.errors import OwnershipLost, Transient, Unusable
from shared.ports.clock import Clock
from shared.runtime.supervise import Tasks

T = TypeVar("T")

log = structlog.get_logger(__name__)

_RETRY_SHARE: Final = 1 / 15
_LEAST_PATIENCE_S: Final = 0.05
_REVOKE_S: Final = 1.0


class EtcdSession:
    """A lease in etcd and the keys attached to it (`shared.ports.coordinator.Session`).

    Use `open_session` to open one.
    """

    def __init__(
        self, connection: EtcdConnection, clock: Clock, tasks: Tasks, lease: int, ttl_s: float, sent: float
    ) -> None:
        self._connection = connection
        self._clock = clock
        self._tasks = tasks
        self._ttl_s = ttl_s
        self._ok_until = sent + ttl_s
        self._over = asyncio.Event()
        self._registered: dict[str, int] = {}
        self._registering = asyncio.Lock()
        self._won: set[int] = set()
        self.id = lease

    @property
    def ok_until(self) -> float:
        return self._ok_until

    @property
    def ttl_s(self) -> float:
        """The time to live in seconds that etcd granted. It may be longer than the one requested."""
        return self._ttl_s

    def alive(self, now: float) -> bool:
        return not self._over.is_set() and now < self._ok_until

    async def lost(self) -> None:
        await self._over.wait()

    # --- renewal ------------------------------------------------------------------------------------------------------

    async def renew(self) -> None:
        """Renew the lease at every third of its time to live. Return when the session is over."""
        await self._wait(self._ttl_s / 3)
        while not self._over.is_set():
            sent = self._clock.elapsed()
            try:
                ttl_s = await self._renewed()
            except Transient as error:
                if not self.alive(self._clock.elapsed()):
                    self._end(f"not renewed in time: {error}")
                    return
                await self._wait(self._ttl_s * _RETRY_SHARE)
                continue
            if ttl_s <= 0:
                self._end("etcd does not know the lease any more")
            elif self._clock.elapsed() >= self._ok_until:
                # The answer came too late: others may have taken over meanwhile.
                self._end("not renewed in time")
            else:
                self._ok_until = sent + ttl_s
                await self._wait(self._ttl_s / 3)

    async def _renewed(self) -> float:
        """Send one renewal to the current etcd member.

        Return the lease's time to live in seconds, 0 if the lease is gone. Raise Transient if the member does not
        answer. Each renewal opens its own stream, so that after a failure the next renewal can use another member.
        """
        connection = self._connection
        member = connection.member()
        login = await connection.login(member)
        left = self._ok_until - self._clock.elapsed()
        patience = max(min(self._ttl_s / 3, connection.settings.attempt_s, left), _LEAST_PATIENCE_S)
        stream = member.method("Lease.LeaseKeepAlive")(timeout=patience, metadata=login)
        try:
            await stream.write(rpc.LeaseKeepAliveRequest(ID=self.id))
            answer = await stream.read()
            if answer is grpc.aio.EOF:
                raise Transient("the renewal was not answered")
            return float(answer.TTL)
        except (grpc.aio.AioRpcError, grpc.aio.UsageError, asyncio.InvalidStateError) as error:
            if isinstance(error, grpc.aio.AioRpcError) and stale_login(error):
                connection.forget_login(login)
                raise Transient("the login was forgotten") from error
            failure = _failure(error)
            connection.failed(member, str(failure))
            raise failure from error
        finally:
            stream.cancel()

    async def _wait(self, seconds: float) -> None:
        """Wait for `seconds`, but return early if the session ends."""
        left = max(self._ok_until - self._clock.elapsed(), 0.0)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(seconds, left)):
                await self._over.wait()

    def _end(self, reason: str) -> None:
        if not self._over.is_set():
            log.warning("session.lost", session=f"{self.id:x}", reason=reason)
            self._over.set()

    # --- keys ---------------------------------------------------------------------------------------------------------

    async def register(self, key: str, value: bytes) -> None:
        """Set `key` to `value` until the session ends.

        A later call with the same key changes its value. Raise OwnershipLost if the session is over.
        """
        async with self._registering:
            if key not in self._registered:
                self._registered[key] = await self._revision_of(key)
            while True:
                self._check()
                # With this condition, a delayed attempt cannot overwrite the value of a later call.
                seen = self._registered[key]
                compare = [requests.written_at(key, seen)]
                request = requests.txn(compare, [requests.put(key, value, self.id)], [key])
                try:
                    answer = await self._connection.call("KV.Txn", request, repeat=True)
                except EtcdLeaseExpired as error:
                    self._end(str(error))
                    raise OwnershipLost(f"the session of {key} is over") from error
                if answer.succeeded:
                    self._registered[key] = answer.header.revision
                    return
                (entry,) = requests.otherwise_entries(answer)
                self._registered[key] = 0 if entry is None else entry.revision
                if entry is not None and entry.lease == self.id and entry.value == value:
                    return

    async def campaign(self, key: str, value: bytes) -> EtcdLeadership:
        """Wait, without a time limit, until `key` does not exist. Then create it, and return the leadership won.

        Raise OwnershipLost if the session ends first.
        """
        leadership: EtcdLeadership | None = None
        attempt: asyncio.Task[int | None] | None = None
        try:
            while leadership is None:
                attempt = self._tasks.start(f"etcd.campaign {key}", self._attempt(key, value))
                won = await self._unless_over(attempt)
                if won is None:
                    vacancy = self._tasks.start(f"etcd.vacancy {key}", self._vacant(key))
                    try:
                        await self._unless_over(vacancy)
                    finally:
                        vacancy.cancel()
                else:
                    leadership = EtcdLeadership(self._connection, self._clock, self, key, won)
        finally:
            if leadership is None and attempt is not None and not self._over.is_set():
                self._tasks.start(f"etcd.withdraw {key}", self._withdraw(key, attempt))
        self._won.add(leadership.revision)
        self._tasks.start(f"etcd.leadership {key}", leadership.guard())
        return leadership

    async def _attempt(self, key: str, value: bytes) -> int | None:
        """Try once to win the election by creating its key. Return the revision of the key, or None.

        None means that the election is not won yet:

        - Another session has the key, or the result is unknown. The caller must try again.
        - The key was left over from an earlier leadership of this session. It is deleted; the caller must try again.
        - The lease has expired, so the session is over.
        """
        request = requests.txn([requests.created_at(key, 0)], [requests.put(key, value, self.id)], [key])
        try:
            answer = await self._connection.call("KV.Txn", request, repeat=True)
            if answer.succeeded:
                return int(answer.header.revision)
            (entry,) = requests.otherwise_entries(answer)
            if entry is None or entry.lease != self.id:
                return None
            if entry.created not in self._won:
                # An earlier attempt of this campaign created the key, and its answer was lost.
                return entry.created
            # The key is from an earlier leadership whose resignation was lost. A leadership never comes back.
            await self._delete_if_ours(key)
        except EtcdLeaseExpired as error:
            self._end(str(error))
        except Transient as error:
            await self._wait(error.retry_in)
        return None

    async def _withdraw(self, key: str, attempt: "asyncio.Task[int | None]") -> None:
        """Clean up after a cancelled campaign: wait for its last attempt, and delete the key if this session has it.

        Retry while etcd does not answer, until the session is over.
        """
        await asyncio.wait({attempt})
        while not self._over.is_set():
            try:
                return await self._delete_if_ours(key)
            except Transient as error:
                await self._wait(error.retry_in)

    async def _delete_if_ours(self, key: str) -> None:
        request = requests.txn([requests.held_by(key, self.id)], [requests.delete(key)])
        await self._connection.call("KV.Txn", request, repeat=True)

    async def _vacant(self, key: str) -> None:
        """Wait until the key does not exist. Return early if etcd cannot be reached; the caller tries again."""
        try:
            async with follow(self._connection, self._clock, key) as view:
                snapshot = view.snapshot
                while key in snapshot.entries:
                    snapshot = await view.changed(snapshot, None)
        except Transient as error:
            await self._wait(error.retry_in)

    async def _unless_over(self, task: "asyncio.Task[T]") -> T:
        """Wait for `task` and return its result. If the session ends first, raise OwnershipLost; `task` continues."""
        ending = self._tasks.start("etcd.session_end", self.lost())
        try:
            await asyncio.wait({task, ending}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ending.cancel()
        self._check()
        return await task

    async def _revision_of(self, key: str) -> int:
        answer = await self._connection.call("KV.Range", requests.read(key), repeat=True)
        return int(answer.kvs[0].mod_revision) if answer.kvs else 0

    def _check(self) -> None:
        if not self.alive(self._clock.elapsed()):
            raise OwnershipLost(f"session {self.id:x} is over")

    async def revoke(self) -> None:
        """End the session and revoke its lease, so that its keys vanish at once.

        If etcd cannot be reached, they vanish when the lease expires. No error is raised.
        """
        self._over.set()
        request = rpc.LeaseRevokeRequest(ID=self.id)
        with contextlib.suppress(Transient, Unusable, EtcdLeaseExpired):
            await self._connection.call("Lease.LeaseRevoke", request, repeat=True, within_s=_REVOKE_S)

    def __repr__(self) -> str:
        left = self._ok_until - self._clock.elapsed()
        return f"<EtcdSession {self.id:x} {'over' if self._over.is_set() else f'{left:.1f} s left'}>"


@contextlib.asynccontextmanager
async def open_session(connection: EtcdConnection, clock: Clock, ttl_s: float) -> AsyncIterator[EtcdSession]:
    """Open a session with a lease of `ttl_s` seconds for the `with` block, and renew it. Revoke it at the end.

    Raise Transient if etcd does not grant the lease. etcd may grant a longer time (`EtcdSession.ttl_s`).
    """
    sent = clock.elapsed()
    granted = await connection.call("Lease.LeaseGrant", rpc.LeaseGrantRequest(TTL=math.ceil(ttl_s)), repeat=False)
    async with Tasks() as tasks:
        session = EtcdSession(connection, clock, tasks, granted.ID, float(granted.TTL), sent)
        tasks.start("etcd.renew", session.renew())
        try:
            yield session
        finally:
            await session.revoke()


def _failure(error: Exception) -> Exception:
    if isinstance(error, grpc.aio.AioRpcError):
        return failure_of(error, "renewal")
    return Transient(f"the renewal broke: {error}")
