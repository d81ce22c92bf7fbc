"""The errors of calls to etcd, mapped to those of the port."""

from typing import Final

import grpc

from shared.domain.errors import Permanent, Transient, Unusable

_AWAY: Final = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.DATA_LOSS,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
    }
)
_STALE_LOGIN: Final = ("invalid auth token", "revision of auth store is old", "user name is empty")
_REFUSED_CODES: Final = frozenset({grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED})
_FULL_RETRY_S: Final = 5.0


class EtcdLeaseExpired(Exception):
    """The lease of a call does not exist, or no longer."""


class Compacted(Exception):
    """The revision of a call is too old to be read, or belongs to another history."""


def stale_login(error: grpc.aio.AioRpcError) -> bool:
    """Return True if the member refused the token, not the user: it lost it, or users changed. Nothing was done."""
    return any(sign in (error.details() or "") for sign in _STALE_LOGIN)


def failure_of(error: grpc.aio.AioRpcError, asked: str) -> Exception:
    """Return the exception to raise instead of gRPC's."""
    code, details = error.code(), error.details() or ""
    text = f"etcd {asked}: {details or code.name}"
    if code is grpc.StatusCode.OUT_OF_RANGE:
        return Compacted(text)
    if code is grpc.StatusCode.NOT_FOUND and "lease" in details:
        return EtcdLeaseExpired(text)
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and "space exceeded" in details:
        return Transient(f"{text} (its quota is used up: compact, defragment, disarm)", retry_in=_FULL_RETRY_S)
    if "larger than max" in details:
        return Permanent(text)
    if code in _AWAY:
        return Transient(text, retry_in=0.5)
    if code in _REFUSED_CODES or "authentication failed" in details or stale_login(error):
        return Unusable(f"{text}: check user, password, certificate and role")
    return Permanent(text)
