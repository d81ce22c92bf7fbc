"""The rights of API keys, and the limits on requests.

- `rights` is the table of roles: the only place that defines which role a request needs.
- `limits` counts the requests of keys, and the wrong keys that addresses send.
- `vouching` signs the client's address and certificate in a request that a master forwards to the leader.
- `key_uses` stores when each key was last used.
"""
