"""How transactions run: engines, pools, fences, bulk statements, migrations, and the schema.

`sqlite.SqliteThreads` has one writer thread and a few readers. `postgres.PostgresPool` has pooled connections.
Both run plain functions of a Connection atomically and map errors to exceptions that state what the caller must do.
"""
