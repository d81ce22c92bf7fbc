"""The rules of crawling as pure functions and frozen values.

No I/O, no clock, no await: `now` is an argument. A failed fetch is a value, never an exception. `crawl` is the spec
and its rules, `frontier` the state of URLs and hosts, `web` URLs, robots and fetches. Sentences for users are made in
`explain`, stored records in `archive`, rows for display in `reads`. Configuration, access and limits are in `ops`. All
of them use `ids`, `errors`, `suggestions` and `software`.
"""
