"""Adds recrawl: the change history of each page, its earlier versions, and the log of changes.

`fetches.recrawl` is NULL for a page of a crawl that fetches each page once.
"""

from alembic import op

revision = "0002_recrawl"
down_revision = "0001_tables"
branch_labels = None
depends_on = None

_SQLITE = {"bytes": "BLOB", "by_key": "WITHOUT ROWID"}
_POSTGRESQL = {"bytes": "BYTEA", "by_key": ""}


def upgrade() -> None:
    connection = op.get_bind()
    words = _POSTGRESQL if connection.dialect.name == "postgresql" else _SQLITE
    for statement in _TABLES.format(**words).strip().removesuffix(";").split(";\n"):
        connection.exec_driver_sql(statement)


_TABLES = """
ALTER TABLE crawl_counters ADD COLUMN retries BIGINT DEFAULT '0' NOT NULL;
ALTER TABLE crawl_counters ADD COLUMN revisits BIGINT DEFAULT '0' NOT NULL;
ALTER TABLE crawl_counters ADD COLUMN revisiting BIGINT DEFAULT '0' NOT NULL;
ALTER TABLE fetches ADD COLUMN recrawl {bytes};
CREATE TABLE page_versions (
    crawl_id BIGINT NOT NULL, host_id BIGINT NOT NULL, fingerprint {bytes} NOT NULL, version INTEGER NOT NULL,
    at_ms BIGINT NOT NULL, status SMALLINT NOT NULL, size BIGINT NOT NULL, mime TEXT, digest {bytes}, title TEXT,
    truncated VARCHAR(16), segment TEXT NOT NULL, "offset" BIGINT NOT NULL, length BIGINT NOT NULL,
    PRIMARY KEY (crawl_id, host_id, fingerprint, version)
) {by_key};
CREATE TABLE page_changes (
    crawl_id BIGINT NOT NULL, at_ms BIGINT NOT NULL, partition INTEGER NOT NULL, number BIGINT NOT NULL,
    entries {bytes} NOT NULL, PRIMARY KEY (crawl_id, at_ms, partition, number)
) {by_key};
"""
