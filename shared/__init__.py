"""What masters and workers share: rules, ports, messages, and adapters to NATS, etcd, the database and disks.

`domain` decides, without clock or I/O. `ports` declares what the outside must provide, as protocols. `wire` has the
messages between processes and their subjects. `adapters` implement the ports. `runtime` has run loops that several
processes use: tasks, retries, registration, the pressure monitor, stall watches. `settings`, `telemetry` and `tls`
configure a process. Imports go one way: adapters -> runtime -> wire -> ports -> domain. The checks enforce it.
"""
