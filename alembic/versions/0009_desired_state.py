"""Adds the desired state of crawls (running or paused), and host policies with the commands that apply them."""

from alembic import op

revision = "0009_desired_state"
down_revision = "0008_seed_contexts"
branch_labels = None
depends_on = None

_SQLITE = "INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT"
_POSTGRESQL = "BIGSERIAL NOT NULL PRIMARY KEY"


def upgrade() -> None:
    connection = op.get_bind()
    number = _POSTGRESQL if connection.dialect.name == "postgresql" else _SQLITE
    for statement in _TABLES.format(number=number).strip().removesuffix(";").split(";\n"):
        connection.exec_driver_sql(statement)
    # Before this version an operator's delay was only a column of the host. As a policy it can be shown and removed.
    for host, partition, delay_ms in connection.exec_driver_sql(
        "SELECT host, partition, operator_delay_ms FROM hosts WHERE operator_delay_ms > 0"
    ).fetchall():
        command = "INSERT INTO host_policy_commands (host, partition) VALUES ({0}, {0}) RETURNING revision"
        policy = (
            "INSERT INTO host_policies (host, partition, spec, delay_ms, blocked_until_ms, slots, revision,"
            " created_at_ms, created_by, changed_at_ms, changed_by)"
            " VALUES ({0}, {0}, {0}, {0}, 0, 0, {0}, 0, 'migration', 0, 'migration')"
        )
        mark = "?" if connection.dialect.name == "sqlite" else "%s"
        made = connection.exec_driver_sql(command.format(mark), (host, partition)).scalar_one()
        spec = f'{{"delay_s":{delay_ms / 1000}}}'
        connection.exec_driver_sql(policy.format(mark), (host, partition, spec, delay_ms, made))


_TABLES = """
ALTER TABLE crawls ADD COLUMN desired VARCHAR(16);
ALTER TABLE hosts ADD COLUMN operator_blocked_until_ms BIGINT DEFAULT '0' NOT NULL;
ALTER TABLE hosts ADD COLUMN operator_slots INTEGER DEFAULT '0' NOT NULL;
CREATE TABLE host_policies (
    host TEXT NOT NULL, partition INTEGER NOT NULL, spec TEXT NOT NULL, delay_ms INTEGER NOT NULL,
    blocked_until_ms BIGINT NOT NULL, slots INTEGER NOT NULL, reason TEXT, revision BIGINT NOT NULL,
    created_at_ms BIGINT NOT NULL, created_by TEXT NOT NULL, changed_at_ms BIGINT NOT NULL, changed_by TEXT NOT NULL,
    PRIMARY KEY (host)
);
CREATE TABLE host_policy_commands (
    revision {number}, host TEXT NOT NULL, partition INTEGER NOT NULL
);
"""
