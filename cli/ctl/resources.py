"""The kinds of resources that `orb ctl` shows: their API paths, the fields that name them, and their table columns."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Any, Final

from cli.ctl.cells import Now, dated, picked, shown
from cli.ctl.columns import (
    age,
    block_style,
    crawl_state,
    duration,
    exclusion_state,
    fields,
    key_state,
    left,
    limits,
    many,
    member_state,
    number,
    owned,
    settings,
    size,
    state_style,
    url_state,
)
from cli.ctl.tables import Column
from cli.terminal.exits import Usage
from shared.domain.suggestions import nearest


class Belongs(Enum):
    """Whether the API has one list of a kind of resource for the whole cluster, or one list for each crawl."""

    TO_CLUSTER = auto()
    TO_CLUSTER_OR_CRAWL = auto()
    """The cluster has one list. The query parameter `crawl` of this list selects the resources of one crawl."""
    TO_CRAWL = auto()
    """Each crawl has its own list. `ResourceKind.path` has `{crawl}` in place of the crawl's name."""


@dataclass(frozen=True, slots=True)
class ResourceKind:
    """A kind of resource that `orb ctl get` and `describe` show, such as crawls or hosts.

    - `name`, `one`: the word for several resources and for one.
    - `path`: the API path of the list.
    - `columns`: the columns of a table of such resources.
    - `key`: the field that names a resource, empty if there is only one resource.
    - `filters`: the options of `get` that filter the list.
    - `single`: the API path of one resource, to which its name is appended, such as `.../lookup?url=`. None: the name
      is appended to the list's path, after a slash. Empty: the API has only the list.
    - `within`: in the API's answer for one resource, the field with the values of `columns`, such as `host`. Empty: the
      answer itself has these values.
    """

    name: str
    one: str
    path: str
    columns: tuple[Column, ...]
    key: str = "id"
    belongs: Belongs = Belongs.TO_CLUSTER
    filters: frozenset[str] = frozenset()
    single: str | None = None
    within: str = ""


_URL_WIDTH: Final = 28
_URL: Final = Column("URL", picked("url"), cut=_URL_WIDTH)
_AGE: Final = Column("AGE", age("created_at"), rank=2, right=True)

CRAWLS: Final = ResourceKind(
    "crawls", "crawl", "/v1/crawls", (
        Column("NAME", picked("name"), cut=12),
        Column("STATE", crawl_state, style=state_style),
        Column("REVISION", picked("revision"), rank=3, right=True),
        Column("ACTIVE", lambda row, now: duration(row.get("active_s")), rank=4, right=True),
        _AGE,
        Column("FINISHED", age("finished_at"), rank=6, right=True, wide=True),
        Column("LABELS", picked("labels"), rank=5, cut=12),
        Column("DESIRED", picked("desired"), rank=6, wide=True),
        Column("DRIFTED", picked("drifted"), rank=6, wide=True),
        Column("ID", picked("id"), rank=7, right=True, wide=True),
    ),
    key="name", filters=frozenset(("state", "prefix", "label")),
)  # fmt: skip

WORKERS: Final = ResourceKind(
    "workers", "worker", "/v1/workers", (
        Column("ID", picked("id"), cut=12),
        Column("STATE", member_state, style=state_style),
        Column("POOL", picked("pool"), rank=2),
        Column("VISITS", picked("load.active_visits"), rank=3, right=True),
        Column("FREE", picked("load.free_visits"), rank=5, right=True),
        Column("PAGES/S", picked("load.pages_per_s"), rank=3, right=True),
        Column("PAGES", number("load.pages"), rank=6, right=True),
        Column("CONFIG", picked("config_revision"), rank=5, right=True, wide=True),
        Column("VERSION", picked("version"), rank=4),
        Column("AGE", age("started_at"), rank=1, right=True),
    ),
)  # fmt: skip

MASTERS: Final = ResourceKind(
    "masters", "master", "/v1/masters", (
        Column("ID", picked("id"), cut=12),
        Column("STATE", member_state, style=state_style),
        Column("LEADS", picked("leading"), rank=2, style=lambda text: "green" if text == "yes" else ""),
        Column("ADDRESS", picked("address"), rank=3),
        Column("PARTITIONS", number("partitions"), rank=1, right=True),
        Column("CONFIG", picked("config_revision"), rank=5, right=True, wide=True),
        Column("VERSION", picked("version"), rank=4),
        Column("AGE", age("started_at"), rank=3, right=True),
    ),
)  # fmt: skip

HOSTS: Final = ResourceKind(
    "hosts", "host", "/v1/hosts", (
        Column("HOST", picked("host"), cut=12),
        Column("PAGES", number("pages"), rank=1, right=True),
        Column("QUEUED", number("queued"), rank=1, right=True),
        Column("WAITING", number("waiting"), rank=5, right=True),
        Column("LEASED", number("leased"), rank=4, right=True),
        Column("DELAY", lambda row, now: f"{row.get('delay_s') or 0:g}s", rank=3, right=True),
        Column("BLOCKED", left("blocked_until"), rank=2, right=True, style=block_style),
        Column("FAILURES", number("failures"), rank=6, right=True),
        Column("LAST FAILURE", picked("last_failure"), rank=7, cut=12, wide=True),
        Column("IP", picked("ip"), rank=8, wide=True),
        Column("VISITED", age("visited_at"), rank=4, right=True),
    ),
    key="host", belongs=Belongs.TO_CLUSTER_OR_CRAWL, within="host",
)  # fmt: skip

HOSTS_OF_NO_CRAWL: Final = replace(
    HOSTS, columns=tuple(each for each in HOSTS.columns if each.title not in ("PAGES", "QUEUED", "WAITING", "LEASED"))
)
"""The kind `hosts` for a list that names no crawl. It has no columns for the counters of a crawl."""

URLS: Final = ResourceKind(
    "urls", "url", "/v1/crawls/{crawl}/urls", (
        _URL,
        Column("STATE", url_state, style=state_style),
        Column("STATUS", picked("status"), rank=2, right=True),
        Column("DEPTH", picked("depth"), rank=3, right=True),
        Column("ATTEMPTS", picked("attempts"), rank=5, right=True),
        Column("SIZE", size("size"), rank=4, right=True),
        Column("FETCHED", age("fetched_at"), rank=4, right=True),
        Column("FROM", picked("discovered_from"), rank=6, cut=12, wide=True),
    ),
    key="url", belongs=Belongs.TO_CRAWL, filters=frozenset(("state", "host", "status")),
    single="/v1/crawls/{crawl}/urls/lookup?url=",
)  # fmt: skip

PAGES: Final = ResourceKind(
    "pages", "page", "/v1/crawls/{crawl}/pages", (
        _URL,
        Column("STATUS", picked("status"), rank=1, right=True),
        Column("TYPE", picked("mime"), rank=3, cut=10),
        Column("SIZE", size("size"), rank=2, right=True),
        Column("FETCHED", age("fetched_at"), rank=4, right=True),
        Column("TITLE", picked("title"), rank=5, cut=16),
        Column("LABELS", picked("labels"), rank=6, cut=12, wide=True),
        Column("SOURCE", picked("source"), rank=6, cut=16, wide=True),
        Column("DIGEST", picked("digest"), rank=7, wide=True),
        Column("SEGMENT", picked("archive.segment"), rank=8, wide=True),
        Column("OFFSET", picked("archive.offset"), rank=8, right=True, wide=True),
    ),
    key="url", belongs=Belongs.TO_CRAWL, filters=frozenset(("host", "status", "mime")),
    single="/v1/crawls/{crawl}/pages/lookup?url=",
)  # fmt: skip

CHANGES: Final = ResourceKind(
    "changes", "change", "/v1/crawls/{crawl}/changes", (
        Column("AT", lambda row, now: dated(row.get("at")), rank=1),
        Column("KIND", picked("kind")),
        _URL,
        Column("VERSION", picked("version"), rank=2, right=True),
        Column("PAGE", picked("page"), rank=3, wide=True),
    ),
    belongs=Belongs.TO_CRAWL, single="", filters=frozenset(("since",)),
)  # fmt: skip

ITEMS: Final = ResourceKind(
    "items", "item", "/v1/crawls/{crawl}/items", (
        Column("ID", picked("id")),
        Column("RULE", picked("rule"), rank=1, cut=12),
        Column("DATA", fields("data"), rank=2, cut=_URL_WIDTH),
        Column("URL", picked("url"), rank=3, cut=_URL_WIDTH),
        Column("FETCHED", age("fetched_at"), rank=4, right=True),
        Column("LABELS", picked("labels"), rank=5, cut=12, wide=True),
        Column("SOURCE", picked("source"), rank=6, cut=16, wide=True),
    ),
    belongs=Belongs.TO_CRAWL, filters=frozenset(("rule", "url")),
)  # fmt: skip

SEEDS: Final = ResourceKind(
    "seeds", "seed", "/v1/crawls/{crawl}/seeds", (
        _URL,
        Column("SOURCE", picked("source"), rank=2),
        Column("STATE", url_state, rank=1, style=state_style),
        Column("STATUS", picked("status"), rank=3, right=True),
        Column("PRIORITY", picked("priority"), rank=4, right=True),
        Column("FETCHED", age("fetched_at"), rank=5, right=True),
        Column("LABELS", picked("labels"), rank=6, cut=12, wide=True),
        Column("GIVEN SOURCE", picked("given_source"), rank=6, cut=16, wide=True),
    ),
    key="url", belongs=Belongs.TO_CRAWL, single="",
)  # fmt: skip

SEED_SETS: Final = ResourceKind(
    "seed-sets", "seed-set", "/v1/crawls/{crawl}/seed-sets", (
        Column("NAME", picked("name"), cut=16),
        Column("SEEDS", number("count"), rank=1, right=True),
        Column("CHANGED", age("changed_at"), rank=2, right=True),
        Column("BY", picked("changed_by"), rank=3, cut=12),
        Column("COMMAND", picked("command"), rank=4, wide=True),
    ),
    key="name", belongs=Belongs.TO_CRAWL,
)  # fmt: skip

EXCLUSIONS: Final = ResourceKind(
    "exclusions", "exclusion", "/v1/exclusions", (
        Column("ID", picked("id"), right=True),
        Column("TARGET", picked("target"), cut=_URL_WIDTH),
        Column("STATE", exclusion_state, rank=1, style=state_style),
        Column("REASON", picked("reason"), rank=2, cut=16),
        Column("FROM", picked("requested_by"), rank=4, cut=12),
        Column("ENDS", left("until"), rank=3, right=True),
        Column("AGE", age("created_at"), rank=5, right=True),
        Column("COMMAND", picked("command"), rank=6, wide=True),
    ),
    filters=frozenset(("target",)),
)  # fmt: skip

HOST_POLICIES: Final = ResourceKind(
    "host-policies", "host-policy", "/v1/host-policies", (
        Column("HOST", picked("host"), cut=16),
        Column("DELAY", lambda row, now: "-" if row.get("delay_s") is None else f"{row['delay_s']:g}s", right=True),
        Column("BLOCKED", picked("effective.blocked"), rank=1, style=lambda text: "yellow" if text == "yes" else ""),
        Column("ENDS", left("block.until"), rank=2, right=True),
        Column("SLOTS", picked("slots"), rank=2, right=True),
        Column("REASON", picked("block.reason"), rank=3, cut=20),
        Column("CHANGED", age("changed_at"), rank=4, right=True),
        Column("BY", picked("changed_by"), rank=6, cut=12, wide=True),
    ),
    key="host",
)  # fmt: skip


def _due(row: Mapping[str, Any], now: Now) -> str:
    if row.get("unreadable"):
        return "unreadable"
    return shown(row.get("cron") or f"every {duration(row.get('every_s'))}")


SCHEDULES: Final = ResourceKind(
    "schedules", "schedule", "/v1/schedules", (
        Column("NAME", picked("name"), cut=12),
        Column("VERB", picked("verb")),
        Column("CRAWL", lambda row, now: shown(row.get("crawl") or row.get("selector")), rank=1, cut=16),
        Column("WHEN", _due, rank=2),
        Column("ZONE", picked("zone"), rank=4),
        Column("NEXT", left("next_at"), rank=1, right=True),
        Column("LAST", age("last_due_at"), rank=3, right=True),
        Column("PAUSED", picked("paused"), rank=2),
        Column("AGE", age("created_at"), rank=6, right=True, wide=True),
    ),
    key="name", belongs=Belongs.TO_CLUSTER_OR_CRAWL,
)  # fmt: skip

LETTERS: Final = ResourceKind(
    "dead-letters", "dead-letter", "/v1/dead-letters", (
        Column("ID", picked("id"), right=True),
        Column("KIND", picked("kind"), rank=3),
        Column("PARTITION", picked("partition"), rank=5, right=True),
        Column("AGE", age("at"), rank=2, right=True),
        Column("URL", picked("url"), cut=_URL_WIDTH),
        Column("EVIDENCE", picked("evidence"), rank=4, cut=12),
    ),
    belongs=Belongs.TO_CLUSTER_OR_CRAWL,
)  # fmt: skip

KEYS: Final = ResourceKind(
    "keys", "key", "/v1/api-keys", (
        Column("NAME", picked("name"), cut=12),
        Column("ROLE", picked("effective.role"), rank=1),
        Column("STATE", key_state, rank=1, style=state_style),
        Column("ENDS", left("effective.expires_at"), rank=3, right=True),
        Column("NETWORKS", picked("effective.networks"), rank=4, cut=14),
        Column("CERTIFICATE", picked("effective.certificate"), rank=4, cut=14),
        Column("USED", age("last_used_at"), rank=2, right=True),
        _AGE,
        Column("KIND", picked("effective.kind"), rank=6, wide=True),
        Column("BY", picked("created_by"), rank=5, cut=12),
        Column("ID", picked("id"), rank=5),
    ),
    key="name", filters=frozenset(("revoked",)),
)  # fmt: skip

REVISIONS: Final = ResourceKind(
    "revisions", "revision", "/v1/crawls/{crawl}/revisions", (
        Column("REVISION", picked("revision"), right=True),
        _AGE,
        Column("SEEDS", many("spec.seeds"), rank=3, right=True),
    ),
    key="revision", belongs=Belongs.TO_CRAWL,
)  # fmt: skip

AUDIT: Final = ResourceKind(
    "audit", "act", "/v1/audit", (
        Column("AT", lambda row, now: dated(row.get("at")), rank=2),
        Column("BY", picked("actor"), cut=16),
        Column("ACTION", picked("action")),
        Column("TARGET", picked("target"), cut=12),
        Column("REQUEST", picked("request"), rank=5, wide=True),
    ),
    single="", filters=frozenset(("actor", "action", "target", "since", "until")),
)  # fmt: skip

CONFIG: Final = ResourceKind(
    "config", "config", "/v1/config", (
        Column("REVISION", picked("revision"), right=True),
        Column("CHANGED", age("changed_at"), rank=2, right=True),
        Column("BY", picked("changed_by"), rank=3, cut=12),
        Column("CONFIG", settings, rank=1, cut=24),
    ),
    key="",
)  # fmt: skip

CONFIG_VALUES: Final = ResourceKind(
    "config", "config", "/v1/config", (
        Column("NAME", picked("name")),
        Column("VALUE", picked("value"), right=True),
        Column("EFFECTIVE", picked("effective"), rank=1, right=True),
        Column("DEFAULT", picked("default"), rank=1, right=True),
        Column("UNIT", picked("unit"), rank=2),
        Column("LIMITS", limits, rank=2),
    ),
    key="name",
)  # fmt: skip
"""Single settings of the hot configuration, by name."""

CONFIGS: Final = ResourceKind(
    "config-revisions", "config-revision", "/v1/config/revisions", CONFIG.columns, key="revision"
)

CLUSTER: Final = ResourceKind(
    "cluster", "cluster", "/v1/cluster", (
        Column("ANSWERS", picked("member")),
        Column("LEADER", picked("leader_address"), cut=12),
        Column("TERM", picked("term"), rank=3, right=True),
        Column("MASTERS", many("masters"), right=True),
        Column("WORKERS", number("workers"), right=True),
        Column("OWNED", owned, rank=1, right=True),
    ),
    key="",
)  # fmt: skip

RESOURCES: Final = (
    CRAWLS, SCHEDULES, URLS, PAGES, CHANGES, ITEMS, SEEDS, SEED_SETS, HOSTS, HOST_POLICIES, EXCLUSIONS, LETTERS,
    WORKERS, MASTERS, CLUSTER, KEYS, REVISIONS, CONFIG, CONFIGS, AUDIT,
)  # fmt: skip

KINDS: Final = ", ".join(sorted(resource.name for resource in RESOURCES))
"""The kinds of resources, for help and messages."""


def named(word: str) -> ResourceKind:
    """Return the kind of resource that a word names, singular or plural. Raise Usage if there is none."""
    for resource in RESOURCES:
        if word in (resource.name, resource.one):
            return resource
    meant = nearest(word, (name for resource in RESOURCES for name in (resource.name, resource.one)))
    if meant is not None:
        raise Usage(f"unknown kind {word!r}; did you mean {meant}?")
    raise Usage(f"unknown kind {word!r}: expected one of {KINDS}.")
