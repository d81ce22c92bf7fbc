"""Builds requests to etcd's key-value store, and converts its answers to types of `shared.ports.coordinator`."""

from collections.abc import Iterable, Sequence
from typing import Any

import etcd3.etcdrpc as rpc

from shared.ports.coordinator import Entry


def prefix_end(prefix: str) -> bytes:
    """Return the first key after all keys that begin with `prefix`, which must not be empty."""
    *before, last = prefix.encode()
    return bytes([*before, last + 1])


def entry_of(pair: Any) -> Entry:
    """Return the `Entry` of a key from `pair`, etcd's KeyValue."""
    return Entry(pair.key.decode(), pair.value, pair.mod_revision, pair.create_revision, pair.lease)


def read(key: str) -> Any:
    """Build a request that reads one key."""
    return rpc.RangeRequest(key=key.encode())


def read_page(prefix: str, *, start: bytes | None, revision: int, limit: int) -> Any:
    """Build a request that reads at most `limit` keys of a prefix, in order, as of `revision` (0: now).

    It begins at the key `start` (None: the prefix's first key).
    """
    key = prefix.encode() if start is None else start
    return rpc.RangeRequest(key=key, range_end=prefix_end(prefix), revision=revision, limit=limit)


def watch_from(key: str, range_end: bytes, revision: int) -> Any:
    """Build a request that watches every change of the keys from `key` to `range_end`, from `revision` on."""
    return rpc.WatchRequest(
        create_request=rpc.WatchCreateRequest(
            key=key.encode(), range_end=range_end, start_revision=revision, progress_notify=True
        )
    )


def created_at(key: str, revision: int) -> Any:
    """Build a condition of a transaction: the key was created at `revision`, or does not exist (0)."""
    return rpc.Compare(key=key.encode(), result=rpc.Compare.EQUAL, target=rpc.Compare.CREATE, create_revision=revision)


def written_at(key: str, revision: int) -> Any:
    """Build a condition of a transaction: the key was last written at `revision`, or does not exist (0)."""
    return rpc.Compare(key=key.encode(), result=rpc.Compare.EQUAL, target=rpc.Compare.MOD, mod_revision=revision)


def held_by(key: str, lease: int) -> Any:
    """Build a condition of a transaction: the key is attached to this lease."""
    return rpc.Compare(key=key.encode(), result=rpc.Compare.EQUAL, target=rpc.Compare.LEASE, lease=lease)


def put(key: str, value: bytes, lease: int = 0) -> Any:
    return rpc.RequestOp(request_put=rpc.PutRequest(key=key.encode(), value=value, lease=lease))


def delete(key: str) -> Any:
    return rpc.RequestOp(request_delete_range=rpc.DeleteRangeRequest(key=key.encode()))


def txn(compare: Sequence[Any], then: Sequence[Any], otherwise_read: Iterable[str] = ()) -> Any:
    """Build a transaction: do `then` if every condition in `compare` holds, else read the keys `otherwise_read`."""
    reads = [rpc.RequestOp(request_range=read(key)) for key in otherwise_read]
    return rpc.TxnRequest(compare=compare, success=then, failure=reads)


def entries_read(answer: Any) -> list[Entry | None]:
    """Return the entries that a transaction read because a condition failed, in the order of its reads.

    An entry is None if the key does not exist.
    """
    ranges = [response.response_range.kvs for response in answer.responses]
    return [entry_of(pairs[0]) if pairs else None for pairs in ranges]
