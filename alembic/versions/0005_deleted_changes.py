"""Adds, for each crawl, the time up to which retention has deleted its log of changes.

A read that begins before this time has a gap.
"""

from alembic import op

revision = "0005_deleted_changes"
down_revision = "0004_requisites"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.get_bind().exec_driver_sql("ALTER TABLE crawls ADD COLUMN changes_deleted_ms BIGINT")
