"""Holds on the reports: owners purge no reports from the stream while a backup copies them.

No downgrade. Code of schema 0006 runs on it and ignores holds, so a backup requires masters of this release.
"""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "report_holds",
        sa.Column("holder", sa.String(length=64), nullable=False),
        sa.Column("beat", sa.BigInteger(), nullable=False),
        sa.Column("begun_at_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("holder"),
    )
