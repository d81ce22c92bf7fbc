"""The tables of the frontier. Alembic's migrations create them, and a test compares this module with the result.

`*_ms` are Unix milliseconds. State numbers are shared.domain.frontier.states.UrlState.
"""

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    String,
    Table,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.schema import CreateIndex
from sqlalchemy.sql.compiler import DDLCompiler

from shared.domain.frontier import states as frontier
from shared.domain.frontier.store_model import FIRST_HOST

metadata = MetaData()

Id = BigInteger().with_variant(Integer, "sqlite")


def partial_index(name: str, *columns: str, where: str, unique: bool = False) -> Index:
    """Return an index of the rows that meet the SQL condition `where`, for both SQLite and PostgreSQL."""
    return Index(name, *columns, unique=unique, sqlite_where=text(where), info={"where": where})


@compiles(CreateIndex, "postgresql")
def _create_index(statement: CreateIndex, compiler: DDLCompiler, **options: Any) -> str:
    """Return SQL that creates an index on PostgreSQL, with a WHERE condition if `partial_index` made the index."""
    # As an argument of Index the condition would import the PostgreSQL dialect in every process.
    index: Index = statement.element
    if "where" in index.info:
        index.dialect_options["postgresql"]["where"] = text(index.info["where"])
    return str(compiler.visit_create_index(statement, **options))  # type: ignore[no-untyped-call]  # no types there


cluster = Table(
    "cluster",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("partitions", Integer, nullable=False),
    Column("epoch", Integer, nullable=False),
    Column("public_suffixes", Text, nullable=False),
    Column("created_at_ms", BigInteger, nullable=False),
)

WORKED_ON = "state IN ({})".format(", ".join(f"'{state}'" for state in sorted(frontier.WORKED_ON)))
"""The SQL condition for crawls that are seeding, running or paused (`states.WORKED_ON`). Queries must use exactly this
text: only then does the database use the partial index `crawls_worked_on`."""

crawls = Table(
    "crawls",
    metadata,
    Column("crawl_id", Id, primary_key=True),
    Column("name", Text, nullable=False),
    Column("revision", Integer, nullable=False),
    Column("state", String(16), nullable=False),
    Column("finished_reason", Text),
    Column("created_at_ms", BigInteger, nullable=False),
    Column("started_at_ms", BigInteger),
    Column("finished_at_ms", BigInteger),
    Column("active_ms", BigInteger, nullable=False, server_default="0"),
    Column("version", Integer, nullable=False, server_default="1"),
    Column("resumes_as", String(16)),
    Column("collected_at_ms", BigInteger),
    Column("change", BigInteger, nullable=False, server_default="0"),
    Column("active_pool", Text),
    Column("active_zero_ms", BigInteger, nullable=False, server_default="0"),
    Column("changes_deleted_ms", BigInteger),
    Column("desired", String(16)),
    Column("refresh_ms", BigInteger, nullable=False, server_default="0"),
    Index("crawls_change", "change", "crawl_id"),
    partial_index("crawls_name", "name", where="state <> 'deleted'", unique=True),
    partial_index("crawls_worked_on", "crawl_id", where=WORKED_ON),
    partial_index("crawls_uncollected", "crawl_id", where="state = 'deleted' AND collected_at_ms IS NULL"),
    sqlite_autoincrement=True,
)
"""The crawls. The active time of a crawl is the time, in ms, in which its pool could work on it.

- `version` grows with every change by an operator.
- `resumes_as`: the state to which a paused crawl returns, or with which a finished crawl begins to run again.
- `collected_at_ms`: when the removal of a deleted crawl's rows was finished.
- `active_pool`: NULL while the active time stands still, as for a paused crawl. Then `active_ms` is the active time.
  Otherwise the name of the pool. Then the active time is the pool's clock (`pool_clocks`) minus `active_zero_ms`.
- `change`: the number of the row's last change of state, declaration or `active_pool` (crawl_values.NEXT_CHANGE).
- `changes_deleted_ms`: the newest time of the rows that retention has deleted from `page_changes`.
- `desired`: the desired state in the declaration, NULL if it has none.
- `refresh_ms`: when the latest run began if it is a refresh, else 0."""

pool_clocks = Table(
    "pool_clocks", metadata, Column("pool", Text, primary_key=True), Column("ms", BigInteger, nullable=False)
)
"""The clock of each pool: for how many ms in all the pool could work. The leader adds to it. The clock stops while
resource pressure stops all work of the pool."""

crawl_labels = Table(
    "crawl_labels",
    metadata,
    Column("crawl_id", BigInteger, primary_key=True, autoincrement=False),
    Column("label", String(63), primary_key=True),
    Column("value", String(255), nullable=False),
    Index("crawl_labels_value", "label", "value", "crawl_id"),
)

crawl_revisions = Table(
    "crawl_revisions",
    metadata,
    Column("crawl_id", BigInteger, primary_key=True, autoincrement=False),
    Column("revision", Integer, primary_key=True, autoincrement=False),
    Column("spec", Text, nullable=False),
    Column("created_at_ms", BigInteger, nullable=False),
)

COUNTERS = (
    "discovered",
    "queued",
    "leased",
    "done",
    "failed",
    "excluded",
    "pages",
    "bytes",
    "fetches",
    "accepted",
    "new",
    "known",
    "refused",
    "stale",
    "retries",
    "revisits",
    "revisiting",
    "requisites",
)
"""Counters per (crawl, partition). discovered = queued + leased + done + failed + excluded, which count URLs.
accepted = new + known + refused, which count links.
`retries`, `revisits` and `requisites` are parts of `queued`, `revisiting` is a part of `leased`."""

crawl_counters = Table(
    "crawl_counters",
    metadata,
    Column("crawl_id", BigInteger, primary_key=True, autoincrement=False),
    Column("partition", Integer, primary_key=True, autoincrement=False),
    *(Column(name, BigInteger, nullable=False, server_default="0") for name in COUNTERS),
    Column("version", BigInteger, nullable=False, server_default="0"),
    Column("changed", BigInteger, nullable=False, server_default="0"),
    Index("crawl_counters_changed", "partition", "changed", "crawl_id"),
)
"""The counters of each crawl in each partition. `changed`: the partition's version in the last transaction that changed
the row. Readers find changed rows by it. Each transaction in a partition raises the partition's version."""

crawl_tallies = Table(
    "crawl_tallies",
    metadata,
    Column("crawl_id", BigInteger, primary_key=True, autoincrement=False),
    Column("partition", Integer, primary_key=True, autoincrement=False),
    Column("kind", String(16), primary_key=True),
    Column("key", String(64), primary_key=True),
    Column("n", BigInteger, nullable=False),
)

partitions = Table(
    "partitions",
    metadata,
    Column("partition", Integer, primary_key=True, autoincrement=False),
    Column("owner_term", BigInteger, nullable=False, server_default="0"),
    Column("version", BigInteger, nullable=False, server_default="0"),
    Column("stream_created_ns", BigInteger, nullable=False, server_default="0"),
    Column("outcome_seq", BigInteger, nullable=False, server_default="0"),
    Column("outcome_ns", BigInteger, nullable=False, server_default="0"),
    Column("discovery_seq", BigInteger, nullable=False, server_default="0"),
    Column("discovery_ns", BigInteger, nullable=False, server_default="0"),
    Column("next_host", BigInteger, nullable=False, server_default=str(FIRST_HOST)),
    Column("next_lease", BigInteger, nullable=False, server_default="1"),
)

hosts = Table(
    "hosts",
    metadata,
    Column("host_id", Id, primary_key=True, autoincrement=False),
    Column("partition", Integer, nullable=False),
    Column("host", Text, nullable=False),
    Column("crawl_delay_ms", Integer, nullable=False, server_default="0"),
    Column("operator_delay_ms", Integer, nullable=False, server_default="0"),
    Column("latency_ms", Integer, nullable=False, server_default="0"),
    Column("failures", Integer, nullable=False, server_default="0"),
    Column("unreachable", Integer, nullable=False, server_default="0"),
    Column("last_failure_ms", BigInteger, nullable=False, server_default="0"),
    Column("last_failure", Text),
    Column("blocked_until_ms", BigInteger, nullable=False, server_default="0"),
    Column("visited_at_ms", BigInteger, nullable=False, server_default="0"),
    Column("recent", Integer, nullable=False, server_default="1"),
    Column("slowed_ms", Integer, nullable=False, server_default="0"),
    Column("asked_ms", BigInteger, nullable=False, server_default="0"),
    Column("silent_since_ms", BigInteger, nullable=False, server_default="0"),
    Column("ip", String(64)),
    Column("operator_blocked_until_ms", BigInteger, nullable=False, server_default="0"),
    Column("operator_slots", Integer, nullable=False, server_default="0"),
    UniqueConstraint("host", name="hosts_host"),
)
"""The hosts, and what was observed of them. The columns `operator_...` have the values that the host's policy sets, 0
if it sets none. The owner of the host copies these values from `host_policies`."""

queues = Table(
    "queues",
    metadata,
    Column("crawl_id", BigInteger, primary_key=True, autoincrement=False),
    Column("host_id", BigInteger, primary_key=True, autoincrement=False),
    Column("partition", Integer, nullable=False),
    Column("queued", Integer, nullable=False, server_default="0"),
    Column("waiting", Integer, nullable=False, server_default="0"),
    Column("leased", Integer, nullable=False, server_default="0"),
    Column("pages", Integer, nullable=False, server_default="0"),
    Column("shard_cap", Integer, nullable=False, server_default="0"),
    Column("closed", Boolean, nullable=False, server_default=text("false")),
    Column("active_at_ms", BigInteger, nullable=False, server_default="0"),
    Column("next_due_ms", BigInteger, nullable=False, server_default="0"),
    Column("signals", LargeBinary),
    Column("found_ms", BigInteger, nullable=False, server_default="0"),
    partial_index("queues_ready", "crawl_id", "partition", "active_at_ms", where="queued + waiting > 0"),
    Index("queues_pages", "crawl_id", "pages", "host_id"),
    Index("queues_partition", "crawl_id", "partition", "host_id"),
    sqlite_with_rowid=False,
)

urls = Table(
    "urls",
    metadata,
    Column("crawl_id", BigInteger, primary_key=True, autoincrement=False),
    Column("host_id", BigInteger, primary_key=True, autoincrement=False),
    Column("fingerprint", LargeBinary(16), primary_key=True),
    Column("url", Text, nullable=False),
    Column("state", SmallInteger, nullable=False),
    Column("depth", SmallInteger, nullable=False),
    Column("hops", SmallInteger, nullable=False),
    Column("priority", SmallInteger, nullable=False),
    Column("attempts", SmallInteger, nullable=False),
    Column("flags", SmallInteger, nullable=False),
    Column("rank", BigInteger, nullable=False),
    Column("lease_id", BigInteger),
    Column("reason", String(40)),
    Column("via_host", BigInteger),
    Column("via", LargeBinary(16)),
    Column("after_command", BigInteger),
    partial_index("urls_queued", "crawl_id", "host_id", "rank", where="state = 0"),
    partial_index("urls_waiting", "crawl_id", "host_id", "rank", where="state = 1"),
    partial_index("urls_seeds", "crawl_id", "host_id", "fingerprint", where="via_host IS NULL"),
    sqlite_with_rowid=False,
)
"""The URLs that each crawl knows. engine/url_compression.py defines the form of `url`. `rank` is the queue order of a
QUEUED row and the due time (Unix ms) of a WAITING one. Seeds have no `via_host`. `after_command`: the newest command
that was in progress when this row was written. This command and earlier ones do not change the row."""

fetches = Table(
    "fetches",
    metadata,
    Column("crawl_id", BigInteger, primary_key=True, autoincrement=False),
    Column("host_id", BigInteger, primary_key=True, autoincrement=False),
    Column("fingerprint", LargeBinary(16), primary_key=True),
    Column("at_ms", BigInteger, nullable=False),
    Column("status", SmallInteger, nullable=False),
    Column("reason", Text),
    Column("detail", Text),
    Column("latency_ms", Integer, nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("mime", Text),
    Column("digest", LargeBinary(20)),
    Column("segment", Text),
    Column("offset", BigInteger),
    Column("length", BigInteger),
    Column("etag", Text),
    Column("last_modified", Text),
    Column("location", Text),
    Column("title", Text),
    Column("links", Integer, nullable=False),
    Column("page", Boolean, nullable=False),
    Column("history", Text),
    Column("truncated", String(16)),
    Column("links_found", Integer),
    Column("left_out", Text),
    Column("recrawl", LargeBinary),
    Column("items_at_ms", BigInteger),
    sqlite_with_rowid=False,
)
"""One row for each URL that was tried. The row describes the latest fetch that stored a page, else the latest fetch.

- `page`: True if the described fetch stored a page that lists may show. False if it stored no page, or if the
  page's robots directive keeps the page out of lists. For such a page, `reason` is noindex or unavailable_after.
- `history`: the other fetches of the URL as short text: time, status and reason of each, newest first.
- `left_out`: the page's excluded links, counted by reason (shared.domain.explain.excluded_links). NULL if none.
- `links`: the number of accepted outlinks. `links_found`: that of all outlinks, NULL if they were not counted.
- `recrawl`: when and how the page changed (shared.domain.frontier.page_history). NULL for a page fetched once.
- `items_at_ms`: the time of a later fetch whose items are the page's, though it stored no new version. Else NULL."""

seed_contexts = Table(
    "seed_contexts",
    metadata,
    Column("crawl_id", BigInteger, primary_key=True, autoincrement=False),
    Column("partition", Integer, primary_key=True, autoincrement=False),
    Column("context_id", BigInteger, primary_key=True, autoincrement=False),
    Column("context", Text, nullable=False),
    sqlite_with_rowid=False,
)
"""The distinct labels and sources of seeds from which a partition's URLs were found.
shared.domain.frontier.seed_contexts encodes `context` and makes its id."""

url_contexts = Table(
    "url_contexts",
    metadata,
    Column("crawl_id", BigInteger, primary_key=True, autoincrement=False),
    Column("host_id", BigInteger, primary_key=True, autoincrement=False),
    Column("fingerprint", LargeBinary(16), primary_key=True),
    Column("context_id", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)
"""For each URL with a seed context: the `context_id` of a row of `seed_contexts`, of the same crawl and partition."""

seed_links = Table(
    "seed_links",
    metadata,
    Column("crawl_id", BigInteger, primary_key=True, autoincrement=False),
    Column("host_id", BigInteger, primary_key=True, autoincrement=False),
    Column("fingerprint", LargeBinary(16), primary_key=True),
    Column("depth", SmallInteger, nullable=False),
    Column("hops", SmallInteger, nullable=False),
    Column("extra", SmallInteger, nullable=False),
    Column("via_host", BigInteger, nullable=False),
    Column("via", LargeBinary(16), nullable=False),
    sqlite_with_rowid=False,
)
"""Links from pages to URLs that are seeds only because of seed sets. If such a URL leaves the seed sets, the URL stays
in the crawl as the target of the link. The table has at most one link for each URL: of several links, the link with the
fewest extra hops (`extra`), and among equals the link with the least depth."""

links_left_out = Table(
    "links_left_out",
    metadata,
    Column("crawl_id", BigInteger, primary_key=True, autoincrement=False),
    Column("partition", Integer, primary_key=True, autoincrement=False),
    Column("reason", String(40), primary_key=True),
    Column("url", Text, primary_key=True),
    Column("host_id", BigInteger, nullable=False),
    Column("fingerprint", LargeBinary(16), nullable=False),
    sqlite_with_rowid=False,
)
"""Examples of excluded links, at most shared.domain.explain.excluded_links.MAX_EXAMPLES per reason and partition.
`host_id` and `fingerprint` are those of the page that has the link."""

leases = Table(
    "leases",
    metadata,
    Column("lease_id", Id, primary_key=True, autoincrement=False),
    Column("partition", Integer, nullable=False),
    Column("term", BigInteger, nullable=False),
    Column("crawl_id", BigInteger, nullable=False),
    Column("spec", Integer, nullable=False),
    Column("host_id", BigInteger, nullable=False),
    Column("slot", SmallInteger, nullable=False),
    Column("pool", Text, nullable=False),
    Column("delay_ms", Integer, nullable=False),
    Column("grants", Integer, nullable=False),
    Column("expired", Integer, nullable=False),
    Column("fingerprints", LargeBinary, nullable=False),
    Column("issued_at_ms", BigInteger, nullable=False),
    Index("leases_partition", "partition"),
    Index("leases_crawl", "crawl_id", "grants", "issued_at_ms"),
)

producers = Table(
    "producers",
    metadata,
    Column("partition", Integer, primary_key=True, autoincrement=False),
    Column("crawl_id", BigInteger, primary_key=True, autoincrement=False),
    Column("producer", Text, primary_key=True),
    Column("n", BigInteger, nullable=False),
    Column("total", BigInteger, nullable=False),
    Column("gaps", BigInteger, nullable=False, server_default="0"),
    Column("seen_at_ms", BigInteger),
    sqlite_with_rowid=False,
)
"""A producer is a name under which a process numbers its messages of a crawl to a partition: 1, 2, 3 and so on. `n`:
the last applied number. `total`: the number of URLs in the messages 1 to `n`. `gaps`: how often numbers were missing.
`seen_at_ms`: when retention first read the row, if the producer is a single task, such as an upload of seeds."""

commands = Table(
    "commands",
    metadata,
    Column("id", Text, primary_key=True),
    Column("partition", Integer, primary_key=True, autoincrement=False),
    Column("crawl_id", BigInteger, nullable=False),
    Column("kind", String(32), nullable=False),
    Column("rows", BigInteger, nullable=False, server_default="0"),
    Column("applied_at_ms", BigInteger, nullable=False),
)

commands_in_progress = Table(
    "commands_in_progress",
    metadata,
    Column("id", Text, primary_key=True),
    Column("partition", Integer, primary_key=True, autoincrement=False),
    Column("number", BigInteger, nullable=False),
    Column("crawl_id", BigInteger, nullable=False),
    Column("kind", String(32), nullable=False),
    Column("args", LargeBinary, nullable=False),
    Column("sequence", BigInteger, nullable=False),
    Column("through", BigInteger, nullable=False),
    Column("after", Text, nullable=False),
    Column("accepted_at_ms", BigInteger, nullable=False),
    Index("commands_in_progress_partition", "partition", "number"),
    Index("commands_in_progress_crawl", "crawl_id"),
)
"""Commands that an owner has accepted and not finished. shared.domain.frontier.store_model.CommandRun describes a row.
`after`: the place at which the command continues, as a decimal number. It is text, because it may exceed 64 bits."""

dead_letters = Table(
    "dead_letters",
    metadata,
    Column("id", Id, primary_key=True),
    Column("partition", Integer, nullable=False),
    Column("crawl_id", BigInteger),
    Column("kind", String(16), nullable=False),
    Column("at_ms", BigInteger, nullable=False),
    Column("url", Text),
    Column("evidence", Text, nullable=False),
    Column("payload", LargeBinary),
    Index("dead_letters_crawl", "crawl_id", "id"),
    sqlite_autoincrement=True,
)

report_holds = Table(
    "report_holds",
    metadata,
    Column("holder", String(64), primary_key=True),
    Column("beat", BigInteger, nullable=False),
    Column("begun_at_ms", BigInteger, nullable=False),
)
"""One row for each process that copies the reports. The process raises the number `beat` every few seconds. While the
number grows, owners delete no reports. `begun_at_ms`: when the present number was written (Unix ms)."""
