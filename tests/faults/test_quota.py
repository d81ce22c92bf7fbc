"""An etcd whose quota is used up takes nothing, and as much as before when it has been cleared."""

import asyncio
from pathlib import Path

import etcd3.etcdrpc as rpc
import grpc
import pytest

from shared.adapters.etcd import EtcdServerSettings
from tests.support.engines.etcd import EtcdServer, connected
from tests.support.faults.quota import BALLAST, used_up

MIB = 1 << 20


def test_an_etcd_whose_quota_is_used_up_takes_nothing_until_it_is_cleared(tmp_path: Path) -> None:
    server = EtcdServer(tmp_path / "etcd", EtcdServerSettings(quota_bytes=8 * MIB, start_s=30))

    async def put() -> None:
        async with connected(server.endpoint) as connection:
            await rpc.KVStub(connection.member().channel).Put(rpc.PutRequest(key=b"/k", value=b"v"), timeout=10)

    async def keys() -> list[bytes]:
        async with connected(server.endpoint) as connection:
            every = rpc.RangeRequest(key=b"\0", range_end=b"\0", keys_only=True)
            return [found.key for found in (await connection.call("KV.Range", every, repeat=True)).kvs]

    asyncio.run(server.start())
    try:
        with used_up((server.endpoint,)):
            with pytest.raises(grpc.aio.AioRpcError, match="database space exceeded"):
                asyncio.run(put())
            assert all(key.startswith(BALLAST) for key in asyncio.run(keys()))
        asyncio.run(put())
        assert asyncio.run(keys()) == [b"/k"]
    finally:
        asyncio.run(server.embedded.stop())
