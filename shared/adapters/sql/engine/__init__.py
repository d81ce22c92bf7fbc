"""Runs transactions on SQLite and PostgreSQL: connections, fences, bulk statements, migrations, and the tables.

`sqlite.SqliteThreads` has one writer thread and a few readers. `postgres.PostgresPool` has pooled connections. Both run
plain functions of a Connection atomically and map errors to exceptions that state what the caller must do.

A command that reads a folder does not import SQLAlchemy: its statements are of `query.Query`, which also runs on the
driver of SQLite alone.
"""
