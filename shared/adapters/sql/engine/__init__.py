"""Runs transactions on SQLite and PostgreSQL: connections, fences, bulk statements, migrations, and the tables.

`sqlite.SqliteThreads` has one writer thread and a few readers. `postgres.PostgresPool` has pooled connections. Both run
plain functions of a Connection atomically and map errors to exceptions that state what the caller must do.

A command that reads a crawl's folder does not import SQLAlchemy. So its statements are each a `query.Query`, which runs on
SQLite's driver alone, too.
"""
