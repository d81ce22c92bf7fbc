"""Transactions on the frontier: what owners and the leader write.

`store.SqlStore` is the port's implementation. `apply` writes outcomes, `discoveries` new links, `leasing` leases and
grants, `commands` applies operators' verbs in chunks. `crawl_rows`, `crawl_gc` and `leader_state` serve the leader.
"""
