"""How a worker speaks HTTP: one exchange at a time, within limits, to addresses it may reach.

The life of a fetch. `head` turns the request into the exact bytes of its head. `CurlFetcher` takes an idle curl handle
(an `Exchange`), gives it to `Transfers` (libcurl's multi interface on the event loop) and waits. libcurl resolves the
name in a thread; for each address it would connect to, the exchange asks `egress`, so the rule holds for the address
that is used and not for an earlier look-up. Header lines and body pieces are collected under their caps; `Deadlines`
ends what is late. When the transfer is over, `failure` says what libcurl's code means, `head` reads the response head,
`decoding` takes off the content codings under a cap, and the caller gets an `Answer` or a `FetchFailed`.

pycurl is imported here and nowhere else.
"""
