"""The bodies of API requests and responses, as pydantic models, and functions that make them from stored data.

Requests refuse unknown fields. A crawl's spec is defined and documented in shared.domain.crawl.spec. The schema of a
spec in the OpenAPI document is generated from the types there.
"""
