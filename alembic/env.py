"""Alembic's entry point. It runs migrations on the connection that shared.adapters.sql.engine.migrate provides."""

from alembic import context

from shared.adapters.sql.engine.access_schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    render_as_batch=False,
    transaction_per_migration=True,
)
with context.begin_transaction():
    context.run_migrations()
