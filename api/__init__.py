"""The master: the REST API, leadership, and the owners of partitions.

Any master answers reads, and accepts seeds and commands about hosts and dead letters. Other writes go to the leader.

- `server` (application, sockets): a request enters through it.
- `http` (identity, limits, errors, caching): a request passes these layers.
- `security`: the table of rights, which defines what each role may do.
- `routes`: the handlers; they shape responses by `schemas`.
- `leader` campaigns, and publishes specs and configuration.
- `crawls` drives the crawls of a cluster.
- `members` holds the state of the other members and the partitions that this master owns.
- `frontier` is the owner of one partition: it ingests reports, dispatches URL shards and grants leases.
- `events` records changes, and `observe` exposes metrics.

Entry points: `cluster_main.cluster_main` for a cluster, `main.main` for a crawl on one machine. A master fetches no
page.
"""
