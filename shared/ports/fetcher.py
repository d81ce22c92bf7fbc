"""The port through which a worker sends HTTP requests."""

from typing import Protocol

from shared.domain.web.fetch import Answer, FetchFailed, FetchRequest


class Fetcher(Protocol):
    """Sends single HTTP requests for crawls and returns the responses or failures.

    Guarantees:

    - A call of `fetch` sends at most one request and follows no redirect.
    - The call connects to a private, loopback or link-local address only if the egress rules of the crawl and worker
      allow it. It keeps the limits in the request.
    - If the caller's task is cancelled, the connection is closed before CancelledError is raised.
    - Any behavior of the server leads to a returned value. An exception is a defect of the crawler.
    """

    async def look_up(self, url: str, *, limit_s: float, proxy: str | None) -> None:
        """Look up the addresses of the URL's host in advance, so that a `fetch` soon after need not wait for them.

        Do nothing if the addresses are known. Do nothing if `proxy` is given, because the proxy looks up the name.

        Other look-ups may delay the start of this look-up. The wait for the start has no limit. After the start, wait
        at most `limit_s` seconds for the addresses. A failed look-up raises nothing: a later `fetch` returns the
        failure.
        """

    async def fetch(self, request: FetchRequest) -> Answer | FetchFailed: ...

    async def close(self) -> None: ...
