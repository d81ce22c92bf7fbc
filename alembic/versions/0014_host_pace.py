"""The pace of a host, from its recent responses: 429s, 503s and outages.

No downgrade. Code of schema 0013 runs on it: it neither reads nor changes the new columns.
"""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("hosts", sa.Column("recent", sa.Integer(), nullable=False, server_default="1"))
    op.add_column("hosts", sa.Column("slowed_ms", sa.Integer(), nullable=False, server_default="0"))
    op.add_column("hosts", sa.Column("asked_ms", sa.BigInteger(), nullable=False, server_default="0"))
    op.add_column("hosts", sa.Column("silent_since_ms", sa.BigInteger(), nullable=False, server_default="0"))
