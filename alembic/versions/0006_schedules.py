"""Adds schedules, their firings with the effects on crawls, and the row that fences the leader's transactions."""

from alembic import op

revision = "0006_schedules"
down_revision = "0005_deleted_changes"
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
CREATE TABLE schedules (
    schedule_id {number}, name VARCHAR(63) NOT NULL, version BIGINT NOT NULL, spec TEXT NOT NULL,
    crawl VARCHAR(63), paused BOOLEAN NOT NULL, due_ms BIGINT, fires_ms BIGINT, last_ms BIGINT DEFAULT '0' NOT NULL,
    created_at_ms BIGINT NOT NULL, created_by TEXT NOT NULL
);
CREATE UNIQUE INDEX schedules_name ON schedules (name);
CREATE INDEX schedules_crawl ON schedules (crawl, name);
CREATE INDEX schedules_due ON schedules (fires_ms, schedule_id) WHERE NOT paused;
CREATE TABLE schedule_firings (
    schedule_id BIGINT NOT NULL, due_ms BIGINT NOT NULL, at_ms BIGINT NOT NULL, verb VARCHAR(16) NOT NULL,
    outcome VARCHAR(16) NOT NULL, detail TEXT NOT NULL, missed INTEGER DEFAULT '0' NOT NULL, until_ms BIGINT NOT NULL,
    PRIMARY KEY (schedule_id, due_ms)
);
CREATE TABLE schedule_effects (
    schedule_id BIGINT NOT NULL, due_ms BIGINT NOT NULL, crawl VARCHAR(63) NOT NULL, crawl_id BIGINT,
    outcome VARCHAR(16) NOT NULL, detail TEXT NOT NULL, at_ms BIGINT NOT NULL, command TEXT,
    commanded BOOLEAN DEFAULT false NOT NULL, PRIMARY KEY (schedule_id, due_ms, crawl)
);
CREATE INDEX schedule_effects_queued ON schedule_effects (crawl, schedule_id, due_ms) WHERE outcome = 'queued';
CREATE INDEX schedule_effects_commands ON schedule_effects (schedule_id, due_ms)
    WHERE command IS NOT NULL AND NOT commanded;
CREATE TABLE leader_fence (
    id INTEGER NOT NULL, term BIGINT NOT NULL, PRIMARY KEY (id)
);
"""
