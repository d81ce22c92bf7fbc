"""Explain the state of URLs, hosts and crawls in sentences for users.

`rule_checks` lists every rule that applies to a URL now. `sentences` describes states and failures. `waits` explains
why a host waits and what changes that. What a crawl lacks is in `excluded_links`, `losses` and `redirects`.
"""
