"""Indexes for a crawl's largest hosts and its leased shards, at a cost independent of the number of hosts.

No downgrade. Code of schema 0005 runs on it: the database maintains the indexes.
"""

from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index("queues_pages", "queues", ["crawl_id", "pages", "host_id"], unique=False)
    op.create_index("leases_crawl", "leases", ["crawl_id", "grants", "issued_at_ms"], unique=False)
