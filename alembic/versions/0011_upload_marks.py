"""The time when a leader first saw the mark of a seed upload, so that retention can delete the mark.

No downgrade. Code of schema 0010 runs on it: it writes marks without a time, which a newer leader sets in its sweep.
"""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("producers", sa.Column("seen_at_ms", sa.BigInteger(), nullable=True))
