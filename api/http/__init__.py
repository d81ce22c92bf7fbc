"""The parts that all HTTP requests and responses share.

- `request_context` (id, log line), `limits` (size of the body) and `authentication` (bearer keys): the layers that a
  request passes first.
- `forwarding` sends writes to the leader; `routing` calls the endpoints.
- `deps` gives routes the services of the master, preconditions and paging.
- `errors` has the table of problems (problem+json). `fields` describes wrong fields in sentences.
- `conditional` and `cached_reads` implement RFC 9110 for reads.
- `streamed` and `sse` send responses of any length.
- `document` builds the OpenAPI document, with `responses` and `examples`.
"""
