"""The log of changes: up to when retention has deleted it, by crawl. Reads that begin earlier have a gap."""

from alembic import op

revision = "0005_deleted_changes"
down_revision = "0004_requisites"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.get_bind().exec_driver_sql("ALTER TABLE crawls ADD COLUMN changes_deleted_ms BIGINT")
