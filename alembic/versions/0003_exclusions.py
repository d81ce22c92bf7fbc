"""Adds exclusions: the hosts, URL prefixes and address ranges that no crawl may request."""

from alembic import op

revision = "0003_exclusions"
down_revision = "0002_recrawl"
branch_labels = None
depends_on = None

_SQLITE = "INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT"
_POSTGRESQL = "BIGSERIAL NOT NULL PRIMARY KEY"


def upgrade() -> None:
    connection = op.get_bind()
    number = _POSTGRESQL if connection.dialect.name == "postgresql" else _SQLITE
    for statement in _TABLES.format(number=number).strip().removesuffix(";").split(";\n"):
        connection.exec_driver_sql(statement)


_TABLES = """
CREATE TABLE exclusions (
    id {number}, target TEXT NOT NULL, reason TEXT NOT NULL, requested_by TEXT NOT NULL, until_ms BIGINT,
    withdraw BOOLEAN NOT NULL, created_at_ms BIGINT NOT NULL, created_by TEXT NOT NULL, revision BIGINT NOT NULL,
    commanded BIGINT DEFAULT '0' NOT NULL, CONSTRAINT exclusions_target UNIQUE (target)
);
CREATE TABLE exclusion_list (
    id INTEGER NOT NULL, revision BIGINT NOT NULL, PRIMARY KEY (id)
);
"""
