"""The handlers of the REST API, one module for each kind of resource.

They read the request, call a service, and answer. No route writes the tables of the frontier: it publishes a message or
a command to the owners, which write them.
"""
