"""`orb ctl`: a cluster's crawls, hosts, members and keys from a shell, over the public REST API only.

How a command runs: `command` parses it, and `contexts` finds the servers and the key. A verb belongs to a module:
`reads`, `creation`, `verbs`, `seeds`, `events`, `bulk`, `admin` or `login`, or to `estate`, which has what files
declare. It sends requests through `client`, which
retries at the next master what may be retried. It passes the results to `output`: a table for people, JSON or YAML for
programs.

Text from the web (URLs, titles, evidence) reaches a terminal only through `cells.printable`.
"""
