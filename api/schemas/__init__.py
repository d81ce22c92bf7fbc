"""The bodies of requests and responses, as pydantic models.

Requests refuse unknown fields. The crawl spec's types and documentation are in shared.domain.crawl.spec; its schema in
the OpenAPI document is made from these.
"""
