"""Adds expiry times, networks and certificates to API keys, and a table of secrets that masters share."""

from alembic import op

revision = "0010_identities"
down_revision = "0009_desired_state"
branch_labels = None
depends_on = None


def upgrade() -> None:
    connection = op.get_bind()
    binary = "BYTEA" if connection.dialect.name == "postgresql" else "BLOB"
    for statement in _STATEMENTS.format(binary=binary).strip().removesuffix(";").split(";\n"):
        connection.exec_driver_sql(statement)


_STATEMENTS = """
ALTER TABLE api_keys ADD COLUMN kind VARCHAR(16) DEFAULT 'key' NOT NULL;
ALTER TABLE api_keys ADD COLUMN expires_at_ms BIGINT;
ALTER TABLE api_keys ADD COLUMN networks TEXT;
ALTER TABLE api_keys ADD COLUMN certificate TEXT;
ALTER TABLE api_keys ADD COLUMN spec TEXT;
ALTER TABLE api_keys ADD COLUMN version BIGINT DEFAULT '1' NOT NULL;
ALTER TABLE api_keys ADD COLUMN last_used_at_ms BIGINT;
CREATE TABLE cluster_secrets (
    name VARCHAR(32) NOT NULL, secret {binary} NOT NULL, PRIMARY KEY (name)
);
"""
