"""A worker's requests to the owners of leases: to begin a visit, and to extend the grant of a visit."""

from typing import Final, assert_never

from shared.domain.errors import Transient
from shared.domain.frontier.states import ANSWER_S
from shared.domain.ids import LeaseId, partition_of_id
from shared.ports.broker import Broker
from shared.ports.clock import Clock
from shared.wire.messages import (
    Answer,
    Begin,
    Extend,
    Go,
    Gone,
    Malformed,
    Superseded,
    UrlShard,
    Wait,
    decode_answer,
    encode,
)
from workers.grant import Grant

NO_OWNER_S: Final = 2.0
"""The seconds until the worker tries again after an owner sent no usable reply."""


class OwnerClient:
    """A client of the masters that own partitions. Its methods raise Transient if a reply is missing or unreadable."""

    def __init__(self, broker: Broker, clock: Clock) -> None:
        self._broker = broker
        self._clock = clock

    async def begin(self, shard: UrlShard, delivery: int, holder: str) -> Grant | Wait | Gone | Superseded:
        """Request a grant for the remaining URLs of the shard, and return the owner's reply.

        The reply is a Grant, or Wait (no grant yet), Gone (the lease has ended), or Superseded (a later delivery of the
        shard has the lease). `delivery`: how many times the broker has delivered the shard. `holder`: a unique name of
        this visit.
        """
        sent = self._clock.elapsed()
        question = Begin(shard.lease, delivery, holder, shard.lease_hash)
        answer = await self._ask(LeaseId(shard.lease), question, ANSWER_S)
        if not isinstance(answer, Go):
            return answer
        if any(not 0 <= position < len(shard.urls) for position in answer.remaining):
            raise Transient(f"the owner of lease {shard.lease} names URLs that the shard has not", retry_in=NO_OWNER_S)
        return Grant(
            answer.grant,
            tuple(answer.remaining),
            sent=sent,
            arrived=self._clock.elapsed(),
            expires_s=answer.expires_ms / 1000,
            rest_s=answer.not_before_ms / 1000,
            delay_s=answer.delay_ms / 1000,
            stop=answer.stop,
        )

    async def extend(self, lease: LeaseId, grant: Grant, holder: str) -> bool:
        """Request more time for a grant. Update its end, `delay_s` and `stop` from the owner's reply.

        Return False if the grant has ended. `holder`: the unique name of the visit. Wait for the reply at most half of
        the grant's remaining time, so that a retry is possible.
        """
        sent = self._clock.elapsed()
        wait_s = min(ANSWER_S, max(grant.cut_at - sent, 0.0) / 2)
        match await self._ask(lease, Extend(lease, grant.number, holder), wait_s):
            case Go(expires_ms=expires_ms, delay_ms=delay_ms, stop=stop):
                grant.extend(sent, expires_ms / 1000)
                grant.delay_s = max(grant.delay_s, delay_ms / 1000)
                grant.stop = grant.stop or stop
                return True
            case Gone() | Superseded():
                return False
            case Wait():
                raise Transient(f"the owner of lease {lease} asks to wait", retry_in=NO_OWNER_S)
            case never:
                assert_never(never)

    async def _ask(self, lease: LeaseId, question: Begin | Extend, wait_s: float) -> Answer:
        try:
            return decode_answer(await self._broker.ask(partition_of_id(lease), encode(question), wait_s))
        except Malformed as error:
            raise Transient(f"the answer about lease {lease} cannot be read: {error}", retry_in=NO_OWNER_S) from error
        except Transient as error:
            raise Transient(f"no answer about lease {lease}: {error}", retry_in=NO_OWNER_S) from error
