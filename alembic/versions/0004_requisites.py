"""Adds the counter of a crawl's queued URLs that are requisites: what pages need to be replayed."""

from alembic import op

revision = "0004_requisites"
down_revision = "0003_exclusions"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.get_bind().exec_driver_sql("ALTER TABLE crawl_counters ADD COLUMN requisites BIGINT DEFAULT '0' NOT NULL")
