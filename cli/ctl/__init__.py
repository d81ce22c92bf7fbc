"""`orb ctl`: a cluster's crawls, hosts, members and keys from a shell, over the public REST API and nothing else.

A command goes: `command` parses it and finds the servers and the key (`contexts`); the verb (a module a family:
`reading`, `declaring`, `turning`, `seeding`, `following`, `bulk`, `tending`, `login`) asks through `client`, which
repeats what may be repeated at the next master, and hands what came back to `output`: a table for people, JSON or YAML
for programs.

What the web wrote (URLs, titles, evidence) reaches a terminal through `cells.printable` alone.
"""
