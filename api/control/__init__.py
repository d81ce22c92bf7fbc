"""What runs under a term: owners of partitions, seeding, the finished check, progress.

A term promises that whoever acts under it is the only one whose acts count: every transaction it makes begins with a
fence that names the term (shared.adapters.sql.fence), so one who was deposed without noticing changes nothing.
Standalone, one master owns every partition, and its term is one more than any that was ever claimed in the same
database.
"""
