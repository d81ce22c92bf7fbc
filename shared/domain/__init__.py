"""The rules of crawling as pure functions and frozen values.

No I/O, no clock, no await: `now` is an argument. A failed fetch is a value, never an exception.

- `crawl`: the spec and its rules. `frontier`: the state of URLs and hosts. `web`: URLs, robots.txt and fetches.
- `explain`: sentences for users. `archive`: stored records. `reads`: rows for display.
- `ops`: configuration, access and limits.

All of them use `ids`, `errors`, `suggestions` and `software`.
"""
