"""The web: URLs, robots.txt, requests, responses and content codings.

`url` canonicalizes URLs and derives fingerprint, host and partition. RFC 9309 is implemented by `robots` and
`robots_rules`. A request and its result are values of `fetch`. Conditional requests are in `validators`. Content
codings are removed by `coding`, within limits.
"""
