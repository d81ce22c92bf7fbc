"""Behaviours of the web as data: what a site answers, and what a right crawler asks for, stores and reports.

`http_standards` and `page_standards` were written from the documents alone, before their author read the code of the
worker. The author of `host_standards` had read parts of it. `mutants` removes the rule that each of those
behaviours tests.
"""
