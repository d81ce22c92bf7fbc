"""Leadership: one master at a time carries out what must be done once in a cluster.

- `leader.Leader` is the loop: campaign, barrier, reconcile, wait for a change or a tick, until the lease is lost.
- `candidacy` decides whether a master that drains still campaigns.
- `schedule_runner` fires schedules.
- `spec_publisher` publishes crawl specs for workers, and `config_publisher` the hot configuration and drains.
- `exclusion_publisher`, `host_policy_publisher`, `schedule_commands` and `seed_set_publisher` send commands to the
  owners of partitions, in the rounds of `command_rounds`.

A term is (epoch, etcd revision). The leader raises the epoch when etcd was replaced, so no term is given twice.
Every transaction under a term begins with a fence that names it, so a deposed leader changes nothing.
"""
