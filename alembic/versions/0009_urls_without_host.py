"""A setting: the cluster stores URLs without their host, which their rows have anyway.

No downgrade. An existing cluster stores them whole, as code of schema 0008 reads them. Only a cluster that is made on
this schema, which such code refuses, stores them without their host.
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
