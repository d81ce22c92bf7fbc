"""Adds, for each crawl, the time at which its present refresh began."""

from alembic import op

revision = "0011_refresh"
down_revision = "0010_identities"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.get_bind().exec_driver_sql("ALTER TABLE crawls ADD COLUMN refresh_ms BIGINT DEFAULT '0' NOT NULL")
