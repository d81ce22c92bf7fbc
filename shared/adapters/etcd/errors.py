"""The errors of calls to etcd, and the conversion of gRPC's errors to errors of `shared.ports.coordinator`."""

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
    """The etcd lease in the request does not exist or has expired."""


class Compacted(Exception):
    """etcd cannot read the revision in the request.

    The revision was compacted, or etcd was replaced by an older one that has not reached it.
    """


def stale_login(error: grpc.aio.AioRpcError) -> bool:
    """Return True if etcd refused the login token of a call, so that the caller should log in again.

    The call did nothing. This happens if the etcd member lost the token, or if users changed since the login.
    """
    return any(sign in (error.details() or "") for sign in _STALE_LOGIN)


def failure_of(error: grpc.aio.AioRpcError, asked: str) -> Exception:
    """Return the exception to raise in place of gRPC's `error`. Its message names the call by the text `asked`.

    The exception is Transient, Unusable, Permanent, Compacted or EtcdLeaseExpired.
    """
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
