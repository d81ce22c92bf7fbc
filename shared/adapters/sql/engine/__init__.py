"""Runs transactions on SQLite and PostgreSQL: connections, fences, bulk statements, migrations, and the tables.

`sqlite.SqliteThreads` has one writer thread and a few readers. `postgres.PostgresPool` has pooled connections. Both run
plain functions of a Connection atomically and convert errors to exceptions that state what the caller must do.

A command that only reads a crawl's folder does not import SQLAlchemy. Its statements are instances of `query.Query`,
which also run on Python's SQLite driver alone.
"""
