"""Indexes by which a crawl's greatest hosts and its shards that are out are found, whatever the number of hosts.

Forward only. Code that knows 0005 alone runs on it: the database keeps the indexes by itself.
"""

from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index("queues_pages", "queues", ["crawl_id", "pages", "host_id"], unique=False)
    op.create_index("leases_crawl", "leases", ["crawl_id", "grants", "issued_at_ms"], unique=False)
