"""Adds to each queue how reliable its host's signs of change are, and when a sitemap last listed a new URL."""

from alembic import op

revision = "0007_signals"
down_revision = "0006_schedules"
branch_labels = None
depends_on = None


def upgrade() -> None:
    connection = op.get_bind()
    binary = "BYTEA" if connection.dialect.name == "postgresql" else "BLOB"
    connection.exec_driver_sql(f"ALTER TABLE queues ADD COLUMN signals {binary}")
    connection.exec_driver_sql("ALTER TABLE queues ADD COLUMN found_ms BIGINT DEFAULT '0' NOT NULL")
