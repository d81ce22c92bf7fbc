"""What runs under a term: owners of partitions, seeding, the finished check, progress.

A term promises that whoever acts under it is the only one whose acts count: every transaction it makes begins with a
fence that names the term (shared.adapters.sql.fence), so one who was deposed without noticing changes nothing.

In a cluster a term is (epoch, revision of the entry that names the owner): the leader writes an entry only to name an
owner anew, and raises the epoch when the coordinator was replaced, so that no term is ever given twice and each is
newer than all before. The leader needs no fence in SQL: what it writes there holds only if what it saw is still so.

Standalone, one master owns every partition, and its term is one more than any that was ever claimed in the same
database.

`plane` is what a master's other parts may know; `cluster` puts together `membership` (alive), `leader` (elected:
`publishing`, `tending`), `fleet` (owners as assigned) and `crawling` (crawls as declared).
"""
