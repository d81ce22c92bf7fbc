"""The frontier's tables.

Revision 0001, the first. No downgrade.
"""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "cluster",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("partitions", sa.Integer(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("public_suffixes", sa.Text(), nullable=False),
        sa.Column("created_at_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "commands",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("partition", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("crawl_id", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("rows", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("applied_at_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", "partition"),
    )
    op.create_table(
        "crawl_counters",
        sa.Column("crawl_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("partition", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("discovered", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("queued", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("leased", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("done", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("failed", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("excluded", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("pages", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("bytes", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("fetches", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("accepted", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("new", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("known", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("refused", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("stale", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("version", sa.BigInteger(), server_default="0", nullable=False),
        sa.PrimaryKeyConstraint("crawl_id", "partition"),
    )
    op.create_table(
        "crawl_revisions",
        sa.Column("crawl_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("revision", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("spec", sa.Text(), nullable=False),
        sa.Column("created_at_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("crawl_id", "revision"),
    )
    op.create_table(
        "crawl_tallies",
        sa.Column("crawl_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("partition", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("n", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("crawl_id", "partition", "kind", "key"),
    )
    op.create_table(
        "crawls",
        sa.Column("crawl_id", ID, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("finished_reason", sa.Text(), nullable=True),
        sa.Column("created_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("started_at_ms", sa.BigInteger(), nullable=True),
        sa.Column("finished_at_ms", sa.BigInteger(), nullable=True),
        sa.Column("active_ms", sa.BigInteger(), server_default="0", nullable=False),
        sa.PrimaryKeyConstraint("crawl_id"),
        sqlite_autoincrement=True,
    )
    op.create_index(
        "crawls_name",
        "crawls",
        ["name"],
        unique=True,
        sqlite_where=sa.text("state <> 'deleted'"),
        postgresql_where=sa.text("state <> 'deleted'"),
    )
    op.create_table(
        "dead_letters",
        sa.Column("id", ID, nullable=False),
        sa.Column("partition", sa.Integer(), nullable=False),
        sa.Column("crawl_id", sa.BigInteger(), nullable=True),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.Column("url", sa.Text(), nullable=True),
        sa.Column("evidence", sa.Text(), nullable=False),
        sa.Column("payload", sa.LargeBinary(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "fetches",
        sa.Column("crawl_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("host_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("fingerprint", sa.LargeBinary(length=16), nullable=False),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.Column("status", sa.SmallInteger(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("detail", sa.Text(), nullable=True),
        sa.Column("latency_ms", sa.Integer(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("mime", sa.Text(), nullable=True),
        sa.Column("digest", sa.LargeBinary(length=20), nullable=True),
        sa.Column("segment", sa.Text(), nullable=True),
        sa.Column("offset", sa.BigInteger(), nullable=True),
        sa.Column("length", sa.BigInteger(), nullable=True),
        sa.Column("etag", sa.Text(), nullable=True),
        sa.Column("last_modified", sa.Text(), nullable=True),
        sa.Column("location", sa.Text(), nullable=True),
        sa.Column("title", sa.Text(), nullable=True),
        sa.Column("links", sa.Integer(), nullable=False),
        sa.Column("page", sa.Boolean(), nullable=False),
        sa.Column("history", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("crawl_id", "host_id", "fingerprint"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "hosts",
        sa.Column("host_id", ID, autoincrement=False, nullable=False),
        sa.Column("partition", sa.Integer(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("crawl_delay_ms", sa.Integer(), server_default="0", nullable=False),
        sa.Column("operator_delay_ms", sa.Integer(), server_default="0", nullable=False),
        sa.Column("latency_ms", sa.Integer(), server_default="0", nullable=False),
        sa.Column("failures", sa.Integer(), server_default="0", nullable=False),
        sa.Column("unreachable", sa.Integer(), server_default="0", nullable=False),
        sa.Column("last_failure_ms", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("last_failure", sa.Text(), nullable=True),
        sa.Column("blocked_until_ms", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("visited_at_ms", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("ip", sa.String(length=64), nullable=True),
        sa.PrimaryKeyConstraint("host_id"),
        sa.UniqueConstraint("host", name="hosts_host"),
    )
    op.create_table(
        "leases",
        sa.Column("lease_id", ID, autoincrement=False, nullable=False),
        sa.Column("partition", sa.Integer(), nullable=False),
        sa.Column("term", sa.BigInteger(), nullable=False),
        sa.Column("crawl_id", sa.BigInteger(), nullable=False),
        sa.Column("spec", sa.Integer(), nullable=False),
        sa.Column("host_id", sa.BigInteger(), nullable=False),
        sa.Column("slot", sa.SmallInteger(), nullable=False),
        sa.Column("pool", sa.Text(), nullable=False),
        sa.Column("delay_ms", sa.Integer(), nullable=False),
        sa.Column("grants", sa.Integer(), nullable=False),
        sa.Column("expired", sa.Integer(), nullable=False),
        sa.Column("fingerprints", sa.LargeBinary(), nullable=False),
        sa.Column("issued_at_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("lease_id"),
    )
    op.create_index("leases_partition", "leases", ["partition"], unique=False)
    op.create_table(
        "partitions",
        sa.Column("partition", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("owner_term", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("version", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("stream_created_ns", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("outcome_seq", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("outcome_ns", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("discovery_seq", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("discovery_ns", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("next_host", sa.BigInteger(), server_default="1", nullable=False),
        sa.Column("next_lease", sa.BigInteger(), server_default="1", nullable=False),
        sa.PrimaryKeyConstraint("partition"),
    )
    op.create_table(
        "producers",
        sa.Column("partition", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("crawl_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("producer", sa.Text(), nullable=False),
        sa.Column("n", sa.BigInteger(), nullable=False),
        sa.Column("total", sa.BigInteger(), nullable=False),
        sa.Column("gaps", sa.BigInteger(), server_default="0", nullable=False),
        sa.PrimaryKeyConstraint("partition", "crawl_id", "producer"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "queues",
        sa.Column("crawl_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("host_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("partition", sa.Integer(), nullable=False),
        sa.Column("queued", sa.Integer(), server_default="0", nullable=False),
        sa.Column("waiting", sa.Integer(), server_default="0", nullable=False),
        sa.Column("leased", sa.Integer(), server_default="0", nullable=False),
        sa.Column("pages", sa.Integer(), server_default="0", nullable=False),
        sa.Column("shard_cap", sa.Integer(), server_default="0", nullable=False),
        sa.Column("closed", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("active_at_ms", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("next_due_ms", sa.BigInteger(), server_default="0", nullable=False),
        sa.PrimaryKeyConstraint("crawl_id", "host_id"),
        sqlite_with_rowid=False,
    )
    op.create_index(
        "queues_ready",
        "queues",
        ["crawl_id", "partition", "active_at_ms"],
        unique=False,
        sqlite_where=sa.text("queued + waiting > 0"),
        postgresql_where=sa.text("queued + waiting > 0"),
    )
    op.create_table(
        "urls",
        sa.Column("crawl_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("host_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("fingerprint", sa.LargeBinary(length=16), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("state", sa.SmallInteger(), nullable=False),
        sa.Column("depth", sa.SmallInteger(), nullable=False),
        sa.Column("hops", sa.SmallInteger(), nullable=False),
        sa.Column("priority", sa.SmallInteger(), nullable=False),
        sa.Column("attempts", sa.SmallInteger(), nullable=False),
        sa.Column("flags", sa.SmallInteger(), nullable=False),
        sa.Column("rank", sa.BigInteger(), nullable=False),
        sa.Column("lease_id", sa.BigInteger(), nullable=True),
        sa.Column("reason", sa.String(length=40), nullable=True),
        sa.Column("via_host", sa.BigInteger(), nullable=True),
        sa.Column("via", sa.LargeBinary(length=16), nullable=True),
        sa.PrimaryKeyConstraint("crawl_id", "host_id", "fingerprint"),
        sqlite_with_rowid=False,
    )
    op.create_index(
        "urls_queued",
        "urls",
        ["crawl_id", "host_id", "rank"],
        unique=False,
        sqlite_where=sa.text("state = 0"),
        postgresql_where=sa.text("state = 0"),
    )
    op.create_index(
        "urls_waiting",
        "urls",
        ["crawl_id", "host_id", "rank"],
        unique=False,
        sqlite_where=sa.text("state = 1"),
        postgresql_where=sa.text("state = 1"),
    )
