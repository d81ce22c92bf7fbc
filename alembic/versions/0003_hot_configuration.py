"""Hot configuration with every earlier revision, and the members that must drain.

No downgrade. Code of schema 0002 runs on it: its tables are unchanged.
"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "config_revisions",
        sa.Column("revision", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
        sa.Column("changed_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("changed_by", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("revision"),
    )
    op.create_table(
        "drains",
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.Column("member", sa.String(length=64), nullable=False),
        sa.Column("since_ms", sa.BigInteger(), nullable=False),
        sa.Column("asked_by", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("role", "member"),
    )
