"""The port through which a worker speaks HTTP."""

from typing import Protocol

from shared.domain.web.fetch import Answer, FetchFailed, FetchRequest


class Fetcher(Protocol):
    """Performs single HTTP exchanges on the crawl path.

    Guarantees:
    - A call sends at most one request and follows no redirect.
    - The egress rules hold for the address actually connected to. The limits of the request hold.
    - Cancelling the awaiting task closes the connection before the cancellation is re-raised.
    - Every behaviour of the server is a returned value; an exception is a bug of ours.
    """

    async def fetch(self, request: FetchRequest) -> Answer | FetchFailed: ...

    async def close(self) -> None: ...
