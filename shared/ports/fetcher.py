"""The port through which a worker speaks HTTP."""

from typing import Protocol

from shared.domain.fetch import Answer, FetchFailed, FetchRequest


class Fetcher(Protocol):
    """Performs single HTTP exchanges on the crawl path.

    Guarantees: at most one request is sent per call, no redirect is followed, the egress rules hold for the address
    that is really connected to, the limits of the request hold, and cancelling the awaiting task ends the exchange (its
    connection is closed) before the cancellation is re-raised. What the web does is a value; exceptions are our bugs.
    """

    async def fetch(self, request: FetchRequest) -> Answer | FetchFailed: ...

    async def close(self) -> None: ...
