"""The worker's HTTP client on libcurl: bounded exchanges with addresses that the egress rules allow.

The steps of a fetch:

1. `head` builds the exact bytes of the request head.
2. `Names` looks up the host's name in a thread.
3. `CurlFetcher` passes an idle curl handle (a `CurlExchange`) to `Transfers` and waits. `Transfers` is libcurl's multi
   interface on the event loop.
4. libcurl connects. The exchange checks each address against `egress` just before the connection.
   So the rules apply to the address that is used, and not to an earlier look-up.
5. The exchange collects header lines and body pieces up to their limits. `Deadlines` ends transfers at a time limit.
6. `failure` maps libcurl's result code, `head` parses the response head, `shared.domain.web.coding` decodes the body up
   to a limit. The caller receives an `Answer` or a `FetchFailed`.

Only this package imports pycurl.
"""
