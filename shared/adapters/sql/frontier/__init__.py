"""Transactions on the frontier: what owners and the leader write.

`store.SqlStore` implements the port `Store`. `apply` writes outcomes, `discoveries` new links, `leasing` leases and
grants, `commands` applies operators' commands in chunks. `crawl_rows`, `crawl_gc` and `leader_state` serve the leader.
"""
