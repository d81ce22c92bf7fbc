"""One master's view of the cluster, and the partitions that it owns.

- `membership` registers this master and reads the records of the others.
- `partition_owners.PartitionOwners` starts and stops one owner for each partition that is assigned to this master.
- `heartbeat` publishes this master's status each second; `member_stats` keeps the newest status of every member.
- `owner_tuning` converts settings of owners to the values that the hot configuration may change.
- `health.HealthMonitor` decides whether this master is fit to lead.
- `pressure` reacts to resources that are nearly full.
- `eviction` ends a stopped master that keeps the write lock of SQLite.
- `control_plane` is the protocol through which the other packages read leadership and assignments.
"""
