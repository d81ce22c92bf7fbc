"""Since when the marks of uploads of seeds are known, so that they are kept for a while only.

Forward only. Code that knows 0010 alone runs on it: it writes marks without a time, which get one when a leader that
knows it walks over them.
"""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("producers", sa.Column("seen_at_ms", sa.BigInteger(), nullable=True))
