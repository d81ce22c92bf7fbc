"""Commands in progress: an operator's verb runs chunk by chunk beside the outcomes and continues after a takeover.

`urls.after_command` keeps a command from changing rows that were written after its acceptance. The index finds the
hosts of a crawl in one partition without those of the others.

No downgrade. Code of schema 0012 runs on it: it writes URLs without a mark. The next newer owner continues the commands
in progress.
"""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "commands_in_progress",
        sa.Column("id", sa.Text(), primary_key=True),
        sa.Column("partition", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("crawl_id", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("args", sa.LargeBinary(), nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("through", sa.BigInteger(), nullable=False),
        sa.Column("after", sa.Text(), nullable=False),
        sa.Column("accepted_at_ms", sa.BigInteger(), nullable=False),
    )
    op.create_index("commands_in_progress_partition", "commands_in_progress", ["partition", "number"])
    op.create_index("commands_in_progress_crawl", "commands_in_progress", ["crawl_id"])
    op.add_column("urls", sa.Column("after_command", sa.BigInteger(), nullable=True))
    op.create_index("queues_partition", "queues", ["crawl_id", "partition", "host_id"])
