"""The port through which a worker speaks HTTP."""

from typing import Protocol

from shared.domain.web.fetch import Answer, FetchFailed, FetchRequest


class Fetcher(Protocol):
    """Performs single HTTP exchanges for crawls.

    Guarantees:

    - A call sends at most one request and follows no redirect.
    - The egress rules hold for the address actually connected to. The limits of the request hold.
    - Cancelling the awaiting task closes the connection before the cancellation is re-raised.
    - Whatever the server does is a returned value. An exception is a defect of the crawler.
    """

    async def fetch(self, request: FetchRequest) -> Answer | FetchFailed: ...

    async def close(self) -> None: ...
