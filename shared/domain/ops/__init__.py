"""Values that operators configure and watch: configuration, access, limits and integrity.

- `config`: the hot configuration.
- `retention`: how long data is kept.
- `watermarks`: when a resource, such as a disk, counts as full.
- `access`: roles and API keys. `audit`: the audit log.
- `egress`: the networks that crawls may reach.
- `counts`: the counters of a process for its metrics.
- `integrity`: the names of the findings of a database check.
"""
