"""An index of the crawls that are worked on.

No downgrade. Code of an earlier schema runs on it: the index changes no result.
"""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

_WORKED_ON = "state IN ('paused', 'running', 'seeding')"


def upgrade() -> None:
    op.create_index(
        "crawls_worked_on",
        "crawls",
        ["crawl_id"],
        unique=False,
        sqlite_where=sa.text(_WORKED_ON),
        postgresql_where=sa.text(_WORKED_ON),
    )
