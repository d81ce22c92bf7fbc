"""Who may do what over the API.

- `rights` is the table of roles: the only place that says which role a request needs.
- `limits` counts the requests of keys and the wrong keys of addresses.
- `vouching` signs the client of a request that a master forwards to the leader.
- `key_uses` notes when keys are used.
"""
