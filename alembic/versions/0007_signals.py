"""Adds two columns to the table `queues`.

- `signals`: how often the dates that the host's sitemaps and feeds give for pages were right.
- `found_ms`: when a sitemap or feed of the host last listed something new (Unix ms).
"""

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
