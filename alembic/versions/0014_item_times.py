"""Adds the time of the last applied message of items, which shows if the stream came back in an earlier state."""

from alembic import op

revision = "0014_item_times"
down_revision = "0013_key_names"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for column in ("timed_sequence", "at_ns"):
        op.get_bind().exec_driver_sql(f"ALTER TABLE item_writer ADD COLUMN {column} BIGINT DEFAULT '0' NOT NULL")
