"""The bodies of API requests and responses, as pydantic models, and functions that make them from stored data.

Requests refuse unknown fields. The crawl spec's types and documentation are in shared.domain.crawl.spec; its schema in
the OpenAPI document is made from these.
"""
