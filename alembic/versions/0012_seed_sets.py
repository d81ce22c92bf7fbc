"""Adds seed sets, their URLs, the commands that apply their changes, and for each URL a page's link to it, if any."""

from alembic import op

revision = "0012_seed_sets"
down_revision = "0011_refresh"
branch_labels = None
depends_on = None

_SQLITE = "INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT", "BLOB", " WITHOUT ROWID"
_POSTGRESQL = "BIGSERIAL NOT NULL PRIMARY KEY", "BYTEA", ""


def upgrade() -> None:
    connection = op.get_bind()
    number, key, without_rowid = _POSTGRESQL if connection.dialect.name == "postgresql" else _SQLITE
    tables = _TABLES.format(number=number, key=key, without_rowid=without_rowid)
    for statement in tables.strip().removesuffix(";").split(";\n"):
        connection.exec_driver_sql(statement)


_TABLES = """
CREATE TABLE seed_sets (
    set_id {number}, crawl_id BIGINT NOT NULL, name VARCHAR(63) NOT NULL, document TEXT NOT NULL,
    canonical TEXT NOT NULL, seeds INTEGER NOT NULL, revision BIGINT NOT NULL, created_at_ms BIGINT NOT NULL,
    created_by TEXT NOT NULL, changed_at_ms BIGINT NOT NULL, changed_by TEXT NOT NULL
);
CREATE UNIQUE INDEX seed_sets_name ON seed_sets (crawl_id, name);
CREATE TABLE seed_set_urls (
    set_id BIGINT NOT NULL, fingerprint {key} NOT NULL, PRIMARY KEY (set_id, fingerprint)
){without_rowid};
CREATE INDEX seed_set_urls_fingerprint ON seed_set_urls (fingerprint);
CREATE TABLE seed_set_commands (
    revision {number}, crawl_id BIGINT NOT NULL, name VARCHAR(63) NOT NULL, added TEXT NOT NULL, removed TEXT NOT NULL
);
CREATE TABLE seed_links (
    crawl_id BIGINT NOT NULL, host_id BIGINT NOT NULL, fingerprint {key} NOT NULL, depth SMALLINT NOT NULL,
    hops SMALLINT NOT NULL, extra SMALLINT NOT NULL, via_host BIGINT NOT NULL, via {key} NOT NULL,
    PRIMARY KEY (crawl_id, host_id, fingerprint)
){without_rowid};
"""
