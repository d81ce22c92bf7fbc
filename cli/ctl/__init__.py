"""`orb ctl`: a cluster's crawls, hosts, members and keys from a shell, over the public REST API only.

How a command runs: `command` parses it, and `contexts` finds the servers and the key. Each verb is in one of the
modules `reads`, `creation`, `verbs`, `schedules`, `seeds`, `events`, `bulk`, `admin` and `login`, or in the package
`estate`, which applies files of declared resources. The verb sends requests through `client`, which repeats a failed
request if that is safe. It passes the results to `output`: a table for people, JSON or YAML for programs.

Text from the web (URLs, titles, evidence) reaches a terminal only through `cli.terminal.printable`.
"""
