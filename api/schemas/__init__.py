"""The bodies of requests and answers, as pydantic models: the one place, with `security`, where HTTP's types live.

Requests refuse fields they do not know. The crawl spec has its types and documentation in shared.domain.crawl; its
schema in the OpenAPI document is made from there.
"""
