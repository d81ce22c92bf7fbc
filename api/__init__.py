"""The master: control plane over HTTP, leadership, and the owners of partitions.

Three parts that share a process and little else. HTTP (`routes`, `schemas`, `security`) answers on any replica and
never touches the frontier's hot path. `control` is the leader and what runs under its term: placement, schedules,
budgets. `frontier` is what an owner of a partition does, all day. A master never fetches a page.
"""
