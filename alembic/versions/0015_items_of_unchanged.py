"""Adds the time of a page's latest fetch without a new version, so that the items of that fetch are accepted."""

from alembic import op

revision = "0015_items_of_unchanged"
down_revision = "0014_item_times"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.get_bind().exec_driver_sql("ALTER TABLE fetches ADD COLUMN items_at_ms BIGINT")
