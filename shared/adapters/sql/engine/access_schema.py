"""The tables of API keys, the audit log, idempotency, command requests, hot configuration and drains.

They belong to the same metadata as `schema`.
"""

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Index,
    Integer,
    LargeBinary,
    String,
    Table,
    Text,
    UniqueConstraint,
)

from shared.adapters.sql.engine.page_schema import metadata as metadata
from shared.adapters.sql.engine.schema import Id

api_keys = Table(
    "api_keys",
    metadata,
    Column("key_id", String(16), primary_key=True),
    Column("name", Text, nullable=False),
    Column("role", String(16), nullable=False),
    Column("digest", LargeBinary(32), nullable=False),
    Column("created_at_ms", BigInteger, nullable=False),
    Column("created_by", Text, nullable=False),
    Column("revoked_at_ms", BigInteger),
)

audit_log = Table(
    "audit_log",
    metadata,
    Column("id", Id, primary_key=True),
    Column("at_ms", BigInteger, nullable=False),
    Column("actor", Text, nullable=False),
    Column("request", Text, nullable=False),
    Column("action", String(32), nullable=False),
    Column("target", Text, nullable=False),
    Column("before", Text),
    Column("after", Text),
    sqlite_autoincrement=True,
)

idempotency = Table(
    "idempotency",
    metadata,
    Column("actor", Text, primary_key=True),
    Column("key", String(255), primary_key=True),
    Column("digest", LargeBinary(32), nullable=False),
    Column("answer", Text, nullable=False),
    Column("at_ms", BigInteger, nullable=False),
    Index("idempotency_at", "at_ms"),
)

command_requests = Table(
    "command_requests",
    metadata,
    Column("id", Text, primary_key=True),
    Column("crawl_id", BigInteger, nullable=False),
    Column("kind", String(32), nullable=False),
    Column("args", Text, nullable=False),
    Column("partitions", Integer, nullable=False),
    Column("at_ms", BigInteger, nullable=False),
    Column("actor", Text, nullable=False),
)
"""Commands sent to the owners. `commands` has what each owner has applied."""

config_revisions = Table(
    "config_revisions",
    metadata,
    Column("revision", Integer, primary_key=True, autoincrement=False),
    Column("document", Text, nullable=False),
    Column("changed_at_ms", BigInteger, nullable=False),
    Column("changed_by", Text, nullable=False),
)
"""The hot configuration. The newest revision is in effect; without one the defaults are."""

exclusions = Table(
    "exclusions",
    metadata,
    Column("id", Id, primary_key=True),
    Column("target", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("requested_by", Text, nullable=False),
    Column("until_ms", BigInteger),
    Column("withdraw", Boolean, nullable=False),
    Column("created_at_ms", BigInteger, nullable=False),
    Column("created_by", Text, nullable=False),
    Column("revision", BigInteger, nullable=False),
    Column("commanded", BigInteger, nullable=False, server_default="0"),
    UniqueConstraint("target", name="exclusions_target"),
    sqlite_autoincrement=True,
)
"""What no crawl may request. `revision`: that of the list at its last change. `commanded`: the newest of its revisions
whose command was sent to the owners."""

exclusion_list = Table(
    "exclusion_list",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("revision", BigInteger, nullable=False),
)
"""One row: a number that each change of `exclusions` raises. Its lock lets writers take turns."""

drains = Table(
    "drains",
    metadata,
    Column("role", String(16), primary_key=True),
    Column("member", String(64), primary_key=True),
    Column("since_ms", BigInteger, nullable=False),
    Column("asked_by", Text, nullable=False),
)
"""The members that must accept no new work, alive or not."""
