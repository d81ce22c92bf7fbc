"""Work on whole databases.

Copies a database (dump and load), checks its integrity, deletes rows after their retention time, and finds out if a
process has the database open.
"""
