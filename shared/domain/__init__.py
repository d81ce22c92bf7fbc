"""The rules of crawling as pure functions and frozen values: URLs, hosts, scope, robots, politeness, retry, crawl
specs.

No I/O, no clock, no await: `now` comes in as an argument. What the web does is a value here, never an exception.
"""
