"""What masters and workers share: rules, ports, messages, and adapters to the engines.

`domain` decides, without clock or I/O. `ports` declares what an engine must provide, as protocols.
`wire` has the messages between processes and their subjects. `adapters` implement the ports on the engines.
`runtime` has run loops that several processes use: tasks, retries, registration, the pressure monitor, stall watches.
`settings`, `telemetry` and `tls` configure a process.
Imports go one way: adapters -> runtime -> wire -> ports -> domain. The checks enforce it.
"""
