"""etcd with its quota used up, and what its operator then does: delete, compact, defragment, disarm."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any, Final

import etcd3.etcdrpc as rpc
import grpc

from tests.support.engines.etcd import PATIENCE_S, connected

BALLAST: Final = b"/ballast/"
_PIECE: Final = bytes(1 << 20)
_ANSWER_S: Final = 10.0
_AGAIN_S: Final = 0.1
_NOT_NOW: Final = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED})


@contextmanager
def used_up(endpoints: tuple[str, ...]) -> Iterator[None]:
    """The etcd of these servers takes nothing more for the block."""
    try:
        asyncio.run(_fill(endpoints))
        yield
    finally:
        asyncio.run(_clear(endpoints))


async def _fill(endpoints: tuple[str, ...]) -> None:
    """Until it says that there is no room."""
    for number in count():
        try:
            await _any(endpoints, rpc.KVStub, "Put", rpc.PutRequest(key=b"%s%d" % (BALLAST, number), value=_PIECE))
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                raise
            return


async def _clear(endpoints: tuple[str, ...]) -> None:
    gone = rpc.DeleteRangeRequest(key=BALLAST, range_end=BALLAST[:-1] + b"0")
    answer = await _any(endpoints, rpc.KVStub, "DeleteRange", gone)
    try:
        compact = rpc.CompactionRequest(revision=answer.header.revision, physical=True)
        await _any(endpoints, rpc.KVStub, "Compact", compact)
    except grpc.aio.AioRpcError as error:
        if error.code() is not grpc.StatusCode.OUT_OF_RANGE:  # it is done, and its answer was lost
            raise
    for endpoint in endpoints:
        await _any((endpoint,), rpc.MaintenanceStub, "Defragment", rpc.DefragmentRequest())
    raised = await _any(endpoints, rpc.MaintenanceStub, "Alarm", rpc.AlarmRequest(action=rpc.AlarmRequest.GET))
    for alarm in raised.alarms:
        disarm = rpc.AlarmRequest(action=rpc.AlarmRequest.DEACTIVATE, memberID=alarm.memberID, alarm=alarm.alarm)
        await _any(endpoints, rpc.MaintenanceStub, "Alarm", disarm)


async def _any(endpoints: tuple[str, ...], stub: Any, method: str, request: Any) -> Any:
    """The answer of the first that has one, asked again while none can answer now."""
    async with asyncio.timeout(PATIENCE_S):
        for number in count():
            async with connected(endpoints[number % len(endpoints)]) as connection:
                try:
                    return await getattr(stub(connection.member().channel), method)(request, timeout=_ANSWER_S)
                except grpc.aio.AioRpcError as error:
                    if error.code() not in _NOT_NOW:
                        raise
            await asyncio.sleep(_AGAIN_S)
    raise AssertionError("count() has no end")
