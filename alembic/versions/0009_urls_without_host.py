"""Whether a cluster keeps its URLs without the host that their rows name anyway.

Forward only. A cluster that is there keeps them whole, as code that knows 0008 alone reads them; only one that is made
on this schema, which such code refuses, has them short.
"""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "cluster", sa.Column("urls_without_host", sa.Boolean(), server_default=sa.text("false"), nullable=False)
    )
