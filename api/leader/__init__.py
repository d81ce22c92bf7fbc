"""Leadership: one master at a time carries out what must be done once in a cluster.

- `leader.Leader` is the loop. It campaigns, and compares SQL with the records in etcd after each change and at regular
  times, until it no longer leads.
- `candidacy` decides whether a master that drains still campaigns.
- `schedule_runner` fires schedules.
- `spec_publisher` publishes crawl specs for workers. `config_publisher` publishes the hot configuration, and which
  members must drain.
- `exclusion_publisher`, `host_policy_publisher`, `schedule_commands` and `seed_set_publisher` send commands to the
  owners of partitions, in the rounds of `command_rounds`.

A term has two parts: the epoch, and the etcd revision at which a leader was elected or a partition was assigned. If
etcd was replaced, its revisions begin again. The leader then raises the epoch, so that no term is given twice. Every
transaction under a term first checks in SQL that no later term has taken over. So an earlier leader changes nothing.
"""
