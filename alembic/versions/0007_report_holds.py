"""Who holds the reports: what such a one has yet to copy is not purged from the stream.

Forward only. Code that knows 0006 alone runs on it, and heeds no holds: a backup wants masters of this release.
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
