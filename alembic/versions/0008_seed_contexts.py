"""Adds seed contexts (the labels and source of a seed), and the context of each URL that was found from such a seed."""

from alembic import op

revision = "0008_seed_contexts"
down_revision = "0007_signals"
branch_labels = None
depends_on = None


def upgrade() -> None:
    connection = op.get_bind()
    binary, without_rowid = ("BYTEA", "") if connection.dialect.name == "postgresql" else ("BLOB", " WITHOUT ROWID")
    for statement in _TABLES.format(binary=binary, end=without_rowid).strip().removesuffix(";").split(";\n"):
        connection.exec_driver_sql(statement)


_TABLES = """
CREATE TABLE seed_contexts (
    crawl_id BIGINT NOT NULL, partition INTEGER NOT NULL, context_id BIGINT NOT NULL, context TEXT NOT NULL,
    PRIMARY KEY (crawl_id, partition, context_id)
){end};
CREATE TABLE url_contexts (
    crawl_id BIGINT NOT NULL, host_id BIGINT NOT NULL, fingerprint {binary} NOT NULL, context_id BIGINT NOT NULL,
    PRIMARY KEY (crawl_id, host_id, fingerprint)
){end};
"""
