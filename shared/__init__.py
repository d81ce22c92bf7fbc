"""What masters and workers share: rules, ports, messages, and adapters to NATS, etcd, databases and disks.

- `domain`: the rules of crawling, as functions of their arguments, without clock or I/O.
- `ports`: protocols that state what the crawler requires of engines, disks and clocks.
- `wire`: the messages between processes, and the subjects and keys under which they are sent.
- `adapters`: implementations of the ports.
- `runtime`: run loops that several processes use, such as tasks, retries, registration and pressure monitors.
- `settings`, `telemetry` and `tls`: the configuration of a process.

Imports go only in this direction: adapters -> runtime -> wire -> ports -> domain. import-linter enforces it.
"""
