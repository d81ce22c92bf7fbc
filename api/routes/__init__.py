"""The handlers of the REST API, one module for each kind of resource.

They read the request, call a service, and answer. No route writes the tables of the frontier: what changes their rows
travels to the owners through the broker.
"""
