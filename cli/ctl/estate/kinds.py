"""The kinds of resources that files declare: one row each, in the order in which they are applied."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from cli.ctl.cells import moment
from cli.ctl.client import Query, segment
from cli.ctl.problems import WrongField
from cli.terminal.exits import Failed
from shared.domain.crawl.exclusions import TargetKind, TargetRefused, read_target
from shared.domain.crawl.spec import LABEL, LABEL_WORDS
from shared.domain.crawl.spec_parse import SpecError, shown
from shared.domain.crawl.state import DECIDED_BY_DESIRED
from shared.domain.ops.seed_sets import set_spec
from shared.domain.suggestions import label_meant
from shared.domain.web.url import DEFAULT_PORT, host_named, without_default_port

Json = Mapping[str, Any]
Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Labelled:
    """Labels by which the user selects resources, and the names of the crawls that have all these labels."""

    labels: Labels
    crawls: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class DeclaredKind:
    """A kind of resource that files declare.

    Names and paths:

    - `name`: the value of `kind` in a document, such as `host-policy`.
    - `at`: the API path of the list, or of the only resource of the kind.
    - `key`: the field that names a resource, empty if a cluster has only one.
    - `posted`: True if a resource is created by POST to the list. False: by PUT to its own path.
    - `numbered`: True if the path of a resource ends in its `id`, not its name. To find the `id`,
      the list is requested with the name: `GET /v1/exclusions?target=NAME`.
    - `query`: parameters of a request for the list.
    - `crawl`: the field that names a crawl, empty if the kind refers to none.
    - `of_crawl`: True if each crawl has its own list of such resources, as of seed sets. The name of a resource is then
      CRAWL/NAME.

    Fields of a document:

    - `signs`: fields that identify this kind in a document without `kind`. One of them is enough. Empty: a document
      needs `kind`.
    - `shown_only`: fields that a master adds in answers. In a file they are ignored.

    Functions. `body` is one resource of the kind:

    - `document(body, now_s)`: converts a master's answer to the fields that a file declares. Returns None if there is
      nothing to declare. `now_s` is the Unix time. An exclusion, or the block of a host policy, is left out if its
      `until` is not later than `now_s`.
    - `named(name)`: returns the canonical form of a name, or why the name is not valid.
    - `carries(body, asked)`: returns True if the resource `body` has the labels that the user asks for (`asked`). The
      function is None if resources of this kind cannot be selected by labels.
    - `loses(body)`: returns a text for the user on what is lost if the resource is deleted.
    - `crawl_error(body, plan, crawl)`: returns the error if the crawl that `body` names is missing or does not fit
      `body`. Returns None if there is no error. `body` and `crawl` are declared in files. If no file declares the
      crawl, `crawl` is None. `plan` is a master's answer about what a PUT of `body` would change, with warnings.
    """

    name: str
    at: str
    key: str
    signs: frozenset[str]
    shown_only: frozenset[str]
    document: Callable[[Json, float], Json | None]
    named: Callable[[str], str | WrongField] = lambda name: name
    posted: bool = False
    numbered: bool = False
    query: Query | None = None
    carries: Callable[[Json, Labelled], bool] | None = None
    loses: Callable[[Json], str] = lambda body: ""
    crawl: str = ""
    # The list of a crawl shows only some fields of a resource. A GET of the single resource returns all fields.
    of_crawl: bool = False
    crawl_error: Callable[[Json, Json, Json | None], WrongField | None] = lambda body, plan, crawl: None

    def path(self, name: str) -> str:
        """Return the API path of a resource. `name` is its name, or its `id` if the kind is `numbered`."""
        if self.of_crawl:
            crawl, _, name = name.partition("/")
            return f"{self.list_path(crawl)}/{segment(name, self.name)}"
        return f"{self.at}/{segment(name, self.name)}" if self.key else self.at

    def list_path(self, crawl: str) -> str:
        """Return the API path of the crawl's list of resources of this kind. `crawl` is the name of the crawl."""
        return self.at.format(crawl=segment(crawl, "crawl"))

    def plan_path(self, name: str) -> str:
        """Return the API path of plan requests. Such a request returns what a PUT of the resource would change."""
        return f"{self.at}/plan" if self.numbered else f"{self.path(name)}/plan"

    def title(self, name: str) -> str:
        """Return a resource's kind and name, as in messages: `crawl/docs`."""
        return f"{self.name}/{name}" if self.key else self.name

    def naming(self, name: str) -> dict[str, str]:
        """Return the fields of a document that name the resource, such as `{"name": "docs"}`."""
        if self.of_crawl:
            return dict(zip((self.crawl, self.key), name.split("/"), strict=True))
        return {self.key: name} if self.key else {}

    def name_of(self, body: Json) -> str:
        """Return the name of a resource from a master's answer. If its kind belongs to a crawl, return `CRAWL/NAME`."""
        return f"{body[self.crawl]}/{body[self.key]}" if self.of_crawl else str(body.get(self.key, ""))

    def crawl_of(self, name: str, body: Json) -> str:
        """Return the name of the crawl that a resource refers to, empty if it refers to none."""
        if self.of_crawl:
            return name.partition("/")[0]
        return str(body.get(self.crawl) or "") if self.crawl else ""

    def declared(self, body: Json) -> dict[str, Any]:
        """Return `body`, a resource in a master's answer, without the fields that a file cannot declare."""
        return {name: value for name, value in body.items() if name not in self.shown_only}


# --- names ------------------------------------------------------------------------------------------------------------


def _label(name: str) -> str | WrongField:
    if re.fullmatch(LABEL, name):
        return name
    return WrongField("name", f"expected {LABEL_WORDS}, got {shown(name)}", label_meant(name))


def _set_of_crawl(name: str) -> str | WrongField:
    parts = name.split("/")
    if len(parts) != 2:
        return WrongField("name", f"expected a crawl and a set without slashes, got {shown(name)}", "")
    for field, part in zip(("crawl", "name"), parts, strict=True):
        if isinstance(wrong := _label(part), WrongField):
            return replace(wrong, path=field)
    return name


def _host(name: str) -> str | WrongField:
    if (plain := without_default_port(name)) is not None:
        return WrongField(
            "host", f"{shown(name)} {DEFAULT_PORT}", f"write {plain}: its policy applies to http and https"
        )
    host = host_named(name)
    return WrongField("host", f"{shown(name)} is not a host", "write name or name:port") if host is None else host


def _target(name: str) -> str | WrongField:
    try:
        return read_target(name).text
    except TargetRefused as error:
        return WrongField("target", error.reason, error.hint)


# --- labels -----------------------------------------------------------------------------------------------------------


def _has(labels: Any, asked: Labels) -> bool:
    return isinstance(labels, dict) and asked.items() <= labels.items()


def _crawl_carries(crawl: Json, asked: Labelled) -> bool:
    return _has(crawl.get("labels"), asked.labels)


def _schedule_carries(schedule: Json, asked: Labelled) -> bool:
    """Return True if the schedule's selector has all the labels, or if the schedule names a crawl that has them."""
    return schedule.get("crawl") in asked.crawls or _has(schedule.get("selector"), asked.labels)


def _seed_set_carries(seed_set: Json, asked: Labelled) -> bool:
    """Return True if the crawl of the seed set has all the labels."""
    return seed_set["crawl"] in asked.crawls


# --- what a deletion ends ---------------------------------------------------------------------------------------------


def _loses_crawl(crawl: Json) -> str:
    stops = {"running": "it is running and stops; ", "seeding": "it is running and stops; "}.get(crawl["state"], "")
    return f"{stops}its URLs, items and counters are deleted; pages in the archive are kept"


def _loses_schedule(schedule: Json) -> str:
    return "with its history; what it has started goes on"


def _loses_seed_set(seed_set: Json) -> str:
    return "its seeds are withdrawn, unless another set or the spec has them"


# --- references -------------------------------------------------------------------------------------------------------


def _missing(plan: Json) -> WrongField | None:
    return next((WrongField("crawl", str(each), "") for each in plan.get("warnings", ())), None)


def _seed_set_error(seed_set: Json, plan: Json, crawl: Json | None) -> WrongField | None:
    """Return the error that prevents adding the seed set to its crawl. Return None if there is no error.

    - If a file declares the crawl: `crawl` is this declaration. Return an error for the first seed that the crawl
      cannot fetch. `plan` is ignored.
    - If no file declares the crawl: `crawl` is None. Return an error if the cluster has no such crawl. The master has
      checked that: a warning in `plan`, the master's plan for a PUT of the seed set, says that the crawl is missing.
    """
    if crawl is None:
        return _missing(plan)
    try:
        set_spec(seed_set["seeds"], crawl["spec"].get("scope") or {})
    except SpecError as error:
        wrong = error.problems[0]
        return WrongField(wrong.path, wrong.message, wrong.hint)
    return None


def _schedule_error(schedule: Json, plan: Json, crawl: Json | None) -> WrongField | None:
    """Return the error that prevents the schedule from applying its verb to its crawl, or None if there is none.

    There are two possible errors: the crawl does not exist, or the crawl's field `desired` forbids the verb.

    - If a file declares the crawl: `crawl` is this declaration. Only `desired` is checked. `plan` is ignored.
    - Otherwise: `crawl` is None, and `plan` is the master's plan for a PUT of the schedule. The master has checked
      both. Its first warning is returned as the error.
    """
    if crawl is None:
        return _missing(plan)
    verb, desired = schedule.get("verb"), crawl.get("desired")
    if desired is None or verb not in DECIDED_BY_DESIRED:
        return None
    reason = f"each firing is refused: the crawl declares `desired: {desired}`, so no schedule applies {verb} to it"
    return WrongField("verb", reason, "leave `desired` out of the crawl, or schedule another verb")


# --- documents --------------------------------------------------------------------------------------------------------


def pruned(body: Json) -> dict[str, Any]:
    """Return a resource's fields without nulls, also in nested objects, and without empty objects at the top level."""
    return {name: value for name, value in _without_nulls(body).items() if value != {}}


def _without_nulls(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {name: _without_nulls(each) for name, each in value.items() if each is not None}


def _ended(until: object, now_s: float) -> bool:
    ends = moment(until)
    return ends is not None and ends.timestamp() <= now_s


def _crawl_document(crawl: Json, now_s: float) -> Json:
    """Return what a file declares of the crawl: labels, `desired`, `start` and the spec.

    `start: false` is added if the crawl does not run and has no `desired`. So a crawl that is created from the file
    does not start.
    """
    given = {"labels": crawl["labels"] or None, "desired": crawl["desired"]}
    waits = crawl["desired"] is None and crawl["state"] not in ("seeding", "running")
    return pruned(given) | ({"start": False} if waits else {}) | {"spec": crawl["spec"]}


def _seed_set_document(seed_set: Json, now_s: float) -> Json:
    return {"seeds": seed_set["seeds"]}


def _key_document(key: Json, now_s: float) -> Json:
    given = {name: value for name, value in pruned(key["spec"]).items() if value != []}
    identity = given.pop("kind", "key")
    return given if identity == "key" else given | {IDENTITY: identity}


def _schedule_document(schedule: Json, now_s: float) -> Json:
    if (why := schedule.get("unreadable")) is not None:
        raise Failed(f"the schedule {schedule['name']!r} cannot be written to a file: {why}. Ask a newer master.")
    return pruned(SCHEDULE.declared(schedule))


def _policy_document(policy: Json, now_s: float) -> Json | None:
    """Convert a host policy from a master's answer to the fields of a file. Leave out a block that has ended.

    Return None if the policy has only an ended block.
    """
    block = policy["block"]
    if block is None or not _ended(block["until"], now_s):
        return pruned(HOST_POLICY.declared(policy))
    left = pruned(HOST_POLICY.declared(policy) | {"block": None})
    return left if len(left) > 1 else None


def _exclusion_document(exclusion: Json, now_s: float) -> Json | None:
    if _ended(exclusion["until"], now_s):
        return None
    given = {"requested_by": exclusion["requested_by"] or None, "until": exclusion["until"]}
    withdraw = {"withdraw": True} if exclusion["withdraw"] else {}
    return {"target": exclusion["target"], "reason": exclusion["reason"], **pruned(given), **withdraw}


def _config_document(stored: Json, now_s: float) -> Json | None:
    return {"config": pruned(stored["config"])} if stored["revision"] else None


# --- the table --------------------------------------------------------------------------------------------------------

CONFIG: Final = DeclaredKind(
    "config", "/v1/config", "",
    signs=frozenset(("config",)),
    shown_only=frozenset(("revision", "changed_at", "changed_by")),
    document=_config_document,
)  # fmt: skip

EXCLUSION: Final = DeclaredKind(
    "exclusion", "/v1/exclusions", "target",
    signs=frozenset(("target",)),
    shown_only=frozenset(("id", "kind", "active", "created_at", "created_by", "command")),
    document=_exclusion_document,
    named=_target, posted=True, numbered=True,
)  # fmt: skip

HOST_POLICY: Final = DeclaredKind(
    "host-policy", "/v1/host-policies", "host",
    signs=frozenset(("host",)),
    shown_only=frozenset(("effective", "created_at", "created_by", "changed_at", "changed_by", "command")),
    document=_policy_document,
    named=_host,
)  # fmt: skip

CRAWL: Final = DeclaredKind(
    "crawl", "/v1/crawls", "name",
    signs=frozenset(("spec", "seeds")),
    shown_only=frozenset((
        "id", "revision", "state", "finished_reason", "blocking_reason", "resource_pressure", "allowed_verbs",
        "created_at", "started_at", "finished_at", "active_s", "drifted", "warnings", "seeds",
    )),
    document=_crawl_document,
    named=_label, posted=True,
    query={"fields": "spec"},
    carries=_crawl_carries,
    loses=_loses_crawl,
)  # fmt: skip

SEED_SET: Final = DeclaredKind(
    "seed-set", "/v1/crawls/{crawl}/seed-sets", "name",
    signs=frozenset(),
    shown_only=frozenset(("count", "created_at", "created_by", "changed_at", "changed_by", "command")),
    document=_seed_set_document,
    named=_set_of_crawl,
    carries=_seed_set_carries,
    loses=_loses_seed_set,
    crawl="crawl", of_crawl=True,
    crawl_error=_seed_set_error,
)  # fmt: skip

SCHEDULE: Final = DeclaredKind(
    "schedule", "/v1/schedules", "name",
    signs=frozenset(("verb",)),
    shown_only=frozenset((
        "id", "unreadable", "next_at", "last_due_at", "created_at", "created_by", "next_firings", "warnings", "history",
    )),
    document=_schedule_document,
    named=_label, posted=True,
    carries=_schedule_carries,
    loses=_loses_schedule,
    crawl="crawl",
    crawl_error=_schedule_error,
)  # fmt: skip

API_KEY: Final = DeclaredKind(
    "api-key", "/v1/api-keys", "name",
    signs=frozenset(("role", "last_used_at")),
    shown_only=frozenset(("id", "effective", "key", "created_at", "created_by", "last_used_at", "revoked_at")),
    document=_key_document,
    named=_label, posted=True,
)  # fmt: skip

KINDS: Final = (CONFIG, EXCLUSION, HOST_POLICY, CRAWL, SEED_SET, SCHEDULE, API_KEY)
"""All kinds, in the order of creation: a kind to which others refer comes first. Deletions use the reverse order."""

IDENTITY: Final = "identity"
"""The field, in files, that says what proves an API key's identity: a secret (`key`) or a client certificate.

The API calls this field `kind`. Files cannot, because `kind` in a file is the kind of resource, such as `api-key`.
"""

BY_NAME: Final[Mapping[str, DeclaredKind]] = {kind.name: kind for kind in KINDS}
TARGET_KINDS: Final = frozenset(map(str, TargetKind))
"""The values that the field `kind` of an exclusion has in a master's answers."""
