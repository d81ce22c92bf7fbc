"""Explain the state of URLs, hosts and crawls in sentences for users.

`rule_checks` lists every rule that applies to a URL now. `sentences` describes states and failures. `waits` explains
why a host gets no request and what changes that. `excluded_links`, `losses` and `redirects` describe what a crawl did
not fetch.
"""
