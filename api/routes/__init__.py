"""The resources of the REST API, one module each: they read the request, call a service, and shape the answer.

No route touches the frontier's hot path: what changes its rows travels to their owners through the broker.
"""
