"""Builds requests to etcd's key-value store, and converts its answers to values of `shared.ports.coordinator`."""

from collections.abc import Iterable, Sequence
from typing import Any

import etcd3.etcdrpc as rpc

from shared.ports.coordinator import Entry


def prefix_end(prefix: str) -> bytes:
    """Return the key that follows all keys with this prefix, such as `a0` for the prefix `a/`.

    It is the exclusive end of their range. `prefix` must not be empty.
    """
    *before, last = prefix.encode()
    return bytes([*before, last + 1])


def entry_of(pair: Any) -> Entry:
    """Convert `pair`, etcd's KeyValue, to an Entry."""
    return Entry(pair.key.decode(), pair.value, pair.mod_revision, pair.create_revision, pair.lease)


def read(key: str) -> Any:
    """Build a request that reads one key."""
    return rpc.RangeRequest(key=key.encode())


def read_page(prefix: str, *, start: bytes | None, revision: int, limit: int) -> Any:
    """Build a request that reads at most `limit` keys of a prefix, in key order.

    - `start`: the key to begin at. None: the first key of the prefix.
    - `revision`: read the values as of this revision. 0: the present ones.
    """
    key = prefix.encode() if start is None else start
    return rpc.RangeRequest(key=key, range_end=prefix_end(prefix), revision=revision, limit=limit)


def watch_from(key: str, range_end: bytes, revision: int) -> Any:
    """Build a request that watches all changes of the keys from `key` up to `range_end`, which is not included.

    It begins with the changes at `revision`.
    """
    return rpc.WatchRequest(
        create_request=rpc.WatchCreateRequest(
            key=key.encode(), range_end=range_end, start_revision=revision, progress_notify=True
        )
    )


def created_at(key: str, revision: int) -> Any:
    """Build a condition for a transaction: the key was created at `revision`. 0: the key does not exist."""
    return rpc.Compare(key=key.encode(), result=rpc.Compare.EQUAL, target=rpc.Compare.CREATE, create_revision=revision)


def written_at(key: str, revision: int) -> Any:
    """Build a condition for a transaction: the key was last written at `revision`. 0: the key does not exist."""
    return rpc.Compare(key=key.encode(), result=rpc.Compare.EQUAL, target=rpc.Compare.MOD, mod_revision=revision)


def held_by(key: str, lease: int) -> Any:
    """Build a condition for a transaction: the key is attached to the etcd lease with the id `lease`."""
    return rpc.Compare(key=key.encode(), result=rpc.Compare.EQUAL, target=rpc.Compare.LEASE, lease=lease)


def put(key: str, value: bytes, lease: int = 0) -> Any:
    return rpc.RequestOp(request_put=rpc.PutRequest(key=key.encode(), value=value, lease=lease))


def delete(key: str) -> Any:
    return rpc.RequestOp(request_delete_range=rpc.DeleteRangeRequest(key=key.encode()))


def txn(compare: Sequence[Any], then: Sequence[Any], otherwise_read: Iterable[str] = ()) -> Any:
    """Build a transaction that does the operations `then` if every condition in `compare` is true.

    Otherwise it reads the keys `otherwise_read`.
    """
    reads = [rpc.RequestOp(request_range=read(key)) for key in otherwise_read]
    return rpc.TxnRequest(compare=compare, success=then, failure=reads)


def otherwise_entries(answer: Any) -> list[Entry | None]:
    """Return the entries of the keys that a transaction has read because one of its conditions was false.

    `answer` is etcd's answer to a transaction built by `txn`. For example, `txn` was called with `otherwise_read`
    `["a", "b"]`. Then the result has the entry of `a` and the entry of `b`. An entry is None if the key does not exist.

    Call this only if `answer.succeeded` is False. Otherwise all conditions were true, and the transaction read no keys.
    """
    ranges = [response.response_range.kvs for response in answer.responses]
    return [entry_of(pairs[0]) if pairs else None for pairs in ranges]
