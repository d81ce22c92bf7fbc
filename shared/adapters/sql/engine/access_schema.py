"""The tables of API keys, audit log, commands, hot configuration, host policies, drains, schedules and seed sets.

They belong to the same SQLAlchemy metadata as the tables in `schema`.
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
    text,
)

from shared.adapters.sql.engine.page_schema import metadata as metadata
from shared.adapters.sql.engine.schema import Id, partial_index

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
    Column("kind", String(16), nullable=False, server_default="key"),
    Column("expires_at_ms", BigInteger),
    Column("networks", Text),
    Column("certificate", Text),
    Column("spec", Text),
    Column("version", BigInteger, nullable=False, server_default="1"),
    Column("last_used_at_ms", BigInteger),
    Index("api_keys_name", "name", "key_id"),
    Index("api_keys_certificate", "certificate"),
)
"""API keys and client certificates. `networks`: the networks from which the key may be used, separated by commas, NULL
for all. `spec`: the JSON that declares the key, NULL if no request declared it."""

cluster_secrets = Table(
    "cluster_secrets",
    metadata,
    Column("name", String(32), primary_key=True),
    Column("secret", LargeBinary(32), nullable=False),
)
"""Random bytes that all masters of the cluster share. No other process reads them."""

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
"""One row for each command that was requested. The table `commands` shows which partitions have applied it."""

config_revisions = Table(
    "config_revisions",
    metadata,
    Column("revision", Integer, primary_key=True, autoincrement=False),
    Column("document", Text, nullable=False),
    Column("changed_at_ms", BigInteger, nullable=False),
    Column("changed_by", Text, nullable=False),
)
"""The revisions of the hot configuration. The newest one is in effect. If there is none, the defaults are in effect."""

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
"""The exclusions.

- `revision`: the revision of the cluster's exclusions (`exclusion_list`) at which this row was last changed.
- `commanded`: the newest revision of this row for which a command was sent to the owners, 0 if none was.
"""

exclusion_list = Table(
    "exclusion_list",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("revision", BigInteger, nullable=False),
)
"""One row with a number that each change of `exclusions` raises. Each writer locks this row until it commits."""

host_policies = Table(
    "host_policies",
    metadata,
    Column("host", Text, primary_key=True),
    Column("partition", Integer, nullable=False),
    Column("spec", Text, nullable=False),
    Column("delay_ms", Integer, nullable=False),
    Column("blocked_until_ms", BigInteger, nullable=False),
    Column("slots", Integer, nullable=False),
    Column("reason", Text),
    Column("revision", BigInteger, nullable=False),
    Column("created_at_ms", BigInteger, nullable=False),
    Column("created_by", Text, nullable=False),
    Column("changed_at_ms", BigInteger, nullable=False),
    Column("changed_by", Text, nullable=False),
)
"""The declared policies of hosts. `spec`: the declaration, in JSON. Owners copy `delay_ms`, `blocked_until_ms` and
`slots` to `hosts`. `reason`: why the host is blocked."""

host_policy_commands = Table(
    "host_policy_commands",
    metadata,
    Column("revision", Id, primary_key=True),
    Column("host", Text, nullable=False),
    Column("partition", Integer, nullable=False),
    sqlite_autoincrement=True,
)
"""One row for each change of a host policy whose command the leader has not published yet.

Inserting a row generates the `revision` of the change. The row is deleted when the command is published."""

seed_sets = Table(
    "seed_sets",
    metadata,
    Column("set_id", Id, primary_key=True),
    Column("crawl_id", BigInteger, nullable=False),
    Column("name", String(63), nullable=False),
    Column("document", Text, nullable=False),
    Column("canonical", Text, nullable=False),
    Column("seeds", Integer, nullable=False),
    Column("revision", BigInteger, nullable=False),
    Column("created_at_ms", BigInteger, nullable=False),
    Column("created_by", Text, nullable=False),
    Column("changed_at_ms", BigInteger, nullable=False),
    Column("changed_by", Text, nullable=False),
    Index("seed_sets_name", "crawl_id", "name", unique=True),
    sqlite_autoincrement=True,
)
"""The declared seed sets.

- `document`: the declared list of seeds, in JSON.
- `canonical`: the same seeds with their URLs converted to canonical URLs, without duplicates, in JSON.
- `seeds`: the number of declared seeds."""

seed_set_urls = Table(
    "seed_set_urls",
    metadata,
    Column("set_id", BigInteger, primary_key=True, autoincrement=False),
    Column("fingerprint", LargeBinary(16), primary_key=True),
    Index("seed_set_urls_fingerprint", "fingerprint"),
    sqlite_with_rowid=False,
)
"""The URLs of each set. Owners read this table to check if a set still has a URL."""

seed_set_commands = Table(
    "seed_set_commands",
    metadata,
    Column("revision", Id, primary_key=True),
    Column("crawl_id", BigInteger, nullable=False),
    Column("name", String(63), nullable=False),
    Column("added", Text, nullable=False),
    Column("removed", Text, nullable=False),
    sqlite_autoincrement=True,
)
"""Changes of seed sets that the leader has not published yet: the seeds to add and the URLs to withdraw, in JSON.
`revision`: the number of the change, which the database generates as the primary key."""

drains = Table(
    "drains",
    metadata,
    Column("role", String(16), primary_key=True),
    Column("member", String(64), primary_key=True),
    Column("since_ms", BigInteger, nullable=False),
    Column("asked_by", Text, nullable=False),
)
"""The members that must accept no new work, alive or not."""

schedules = Table(
    "schedules",
    metadata,
    Column("schedule_id", Id, primary_key=True),
    Column("name", String(63), nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("spec", Text, nullable=False),
    Column("crawl", String(63)),
    Column("paused", Boolean, nullable=False),
    Column("due_ms", BigInteger),
    Column("fires_ms", BigInteger),
    Column("last_ms", BigInteger, nullable=False, server_default="0"),
    Column("created_at_ms", BigInteger, nullable=False),
    Column("created_by", Text, nullable=False),
    Index("schedules_name", "name", unique=True),
    Index("schedules_crawl", "crawl", "name"),
    partial_index("schedules_due", "fires_ms", "schedule_id", where="NOT paused"),
    sqlite_autoincrement=True,
)
"""The declared schedules.

- `due_ms`: the next due time. `fires_ms`: when the schedule fires for it, at most the spec's `jitter_s` later.
  Both are NULL if there is no next due time.
- `last_ms`: the last due time that was handled, 0 if none was.
- `crawl`: the crawl that the spec names, NULL if it selects crawls by labels.
"""

schedule_firings = Table(
    "schedule_firings",
    metadata,
    Column("schedule_id", BigInteger, primary_key=True, autoincrement=False),
    Column("due_ms", BigInteger, primary_key=True, autoincrement=False),
    Column("at_ms", BigInteger, nullable=False),
    Column("verb", String(16), nullable=False),
    Column("outcome", String(16), nullable=False),
    Column("detail", Text, nullable=False),
    Column("missed", Integer, nullable=False, server_default="0"),
    Column("until_ms", BigInteger, nullable=False),
)
"""One row for each due time that was handled. Consecutive missed due times share one row: `missed` is their number,
`due_ms` the first of them, and `until_ms` the last."""

schedule_effects = Table(
    "schedule_effects",
    metadata,
    Column("schedule_id", BigInteger, primary_key=True, autoincrement=False),
    Column("due_ms", BigInteger, primary_key=True, autoincrement=False),
    Column("crawl", String(63), primary_key=True),
    Column("crawl_id", BigInteger),
    Column("outcome", String(16), nullable=False),
    Column("detail", Text, nullable=False),
    Column("at_ms", BigInteger, nullable=False),
    Column("command", Text),
    Column("commanded", Boolean, nullable=False, server_default=text("false")),
    partial_index("schedule_effects_queued", "crawl", "schedule_id", "due_ms", where="outcome = 'queued'"),
    partial_index("schedule_effects_commands", "schedule_id", "due_ms", where="command IS NOT NULL AND NOT commanded"),
)
"""What a firing of a schedule did to each crawl. `command`: the id of the command that the leader must publish for the
crawl, NULL if it needs none. `commanded`: the leader has published this command."""

leader_fence = Table(
    "leader_fence",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("term", BigInteger, nullable=False),
)
"""One row: the newest term under which a leader wrote. A transaction of an earlier term changes nothing."""
