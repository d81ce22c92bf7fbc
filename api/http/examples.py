"""Examples for the OpenAPI document: one of each schema, and one of each kind of problem.

Viewers of the document compose whole responses from them. A test validates them against the schemas.
"""

from typing import Any, Final

from api.http.errors import TYPE, ProblemKind
from api.schemas.crawls import EXAMPLE

_AT: Final = "2030-01-01T08:00:00Z"
_LATER: Final = "2030-01-01T08:12:30Z"
_URL: Final = "https://example.org/guide/"
_SEED: Final = "https://example.org/"
_COMMAND: Final = "6f1f0c5e8d3b4a7f9b1d2c3e4f5a6b7c"
_KEY: Final = "5f3c0a2b9d1e4f67"
_PAGE: Final = "4099-8a5edab282632443219e051e4ade2d1d"

_LOOK: Final[dict[str, Any]] = {
    "id": _PAGE, "url": _URL, "host": "example.org", "status": 200, "mime": "text/html", "size": 18250,
    "digest": "sha1:3I42H3S6NNFQ2MSVX7XZKYAYSCX5QBYJ", "depth": 1, "title": "A guide", "fetched_at": _LATER,
    "archive": {"segment": "orb-w1-20300101080000-00001.warc.gz", "offset": 10240, "length": 5120}, "truncated": None,
}  # fmt: skip
_MEMBER: Final[dict[str, Any]] = {
    "version": "0.1.0", "started_at": _AT, "draining": False, "state": "active", "config_revision": 3,
}  # fmt: skip
_KEPT: Final[dict[str, Any]] = {"id": _KEY, "name": "terraform", "role": "operator", "created_at": _AT}
_LOAD: Final[dict[str, Any]] = {"partitions": 64, "shards": 12, "resource_pressure": [], "uptime_s": 3600.0}
_MASTER: Final[dict[str, Any]] = {
    "id": "m1", **_MEMBER, "address": "10.0.0.11:8080", "leading": True, "partitions": 64, "load": _LOAD,
}  # fmt: skip
_HOST: Final[dict[str, Any]] = {
    "host": "example.org", "ip": "192.0.2.7", "queued": 280, "waiting": 8, "leased": 12, "pages": 870, "delay_s": 1.0,
    "latency_s": 0.085, "failures": 0, "last_failure": None, "blocked_until": None, "visited_at": _LATER,
}  # fmt: skip
_LITTLE: Final = {"count": 12, "oldest_s": 1.5, "is_lower_bound": False}
_WAITING: Final[dict[str, Any]] = {
    "host": "example.org",
    "reason": "refuses",
    "until": _LATER,
    "urls": 12,
    "text": f"until {_LATER} for example.org: it answered 429 (too many requests) and asked for this pause",
}
_RATES: Final[dict[str, Any]] = {
    "counted_at": _LATER,
    "windows": [{"window_s": 10, "measured_s": 10.0, "pages_per_s": 4.2, "bytes_per_s": 76650.0}],
}

SCHEMAS: Final[dict[str, Any]] = {
    "CrawlSpec": EXAMPLE["spec"],
    "Seed": {"url": _SEED, "priority": 0},
    "Crawl": {
        "name": "docs", "id": 7, "revision": 1, "state": "running", "finished_reason": None,
        "blocking_reason": None, "resource_pressure": [],
        "allowed_verbs": ["pause", "cancel", "delete", "reset", "retry-failed"], "labels": EXAMPLE["labels"],
        "spec": EXAMPLE["spec"], "created_at": _AT, "started_at": _AT, "finished_at": None, "active_s": 750.0,
    },
    "Revision": {"revision": 1, "created_at": _AT, "spec": EXAMPLE["spec"]},
    "Change": {"path": "spec.budget.max_pages", "before": 10000, "after": 50000},
    "Plan": {
        "action": "update", "revision": 2, "state": "running",
        "changes": [{"path": "spec.budget.max_pages", "before": 10000, "after": 50000}],
    },
    "RevisionDiff": {
        "revision": 2, "against": 1,
        "changes": [{"path": "spec.budget.max_pages", "before": 10000, "after": 50000}],
    },
    "CommandStatus": {"id": _COMMAND, "kind": "retry_failed", "applied": 60, "partitions": 64, "requested_at": _AT},
    "CommandAccepted": {"command": _COMMAND},
    "SeedDeletionAccepted": {"command": _COMMAND, "revision": 2},
    "SeedReport": {
        "lines": 1000, "accepted": 997, "duplicate": 2, "rejected": 1, "durable_lines": 1000,
        "first_rejected": [{"line": 12, "url": "ftp://example.org/", "reason": "its scheme is not http or https"}],
    },
    "SeedSummary": {
        "url": _SEED, "source": "spec", "priority": 0, "state": "done", "reason": None, "status": 200,
        "fetched_at": _LATER,
    },
    "CrawlProgress": {
        "state": "running", "finished_reason": None, "known": 1200, "completed": 900, "progress": 0.75, "pages": 870,
        "bytes": 15877500, "active_s": 750.0, "pages_per_s": 4.2, "rates": _RATES,
        "waits": {"standing": False, "number": 1, "more": False, "hosts": [_WAITING]},
    },
    "CrawlWaits": {"standing": False, "number": 1, "more": False, "hosts": [_WAITING]},
    "WaitingHost": _WAITING,
    "Rates": _RATES,
    "Lag": {
        "at": _LATER, "due_urls": {"count": 288, "oldest_s": 41.0, "is_lower_bound": False}, "shards_pending": _LITTLE,
        "shards_in_flight": _LITTLE, "reports_pending": {"count": 0, "oldest_s": 0.0, "is_lower_bound": False},
    },
    "UrlSummary": {
        "url": _URL, "host": "example.org", "state": "done", "reason": None, "depth": 1, "attempts": 1,
        "discovered_from": _SEED, "status": 200, "mime": "text/html", "size": 18250, "fetched_at": _LATER,
        "redirect": None, "truncated": None,
    },
    "UrlDetail": {
        "url": _URL, "fingerprint": "8a5edab282632443219e051e4ade2d1d", "state": "done", "reason": None, "depth": 1,
        "priority": 0, "attempts": 1, "due_at": None, "leased_at": None, "discovered_from": [_SEED],
        "fetch": {
            "at": _LATER, "status": 200, "page": True, "reason": None, "detail": None, "latency_ms": 85, "size": 18250,
            "mime": "text/html", "title": "A guide", "redirect": None, "links": 42,
            "links_found": 51, "left_out": {"other_host": 9}, "truncated": None,
        },
        "host": _HOST, "evidence": [],
    },
    "Explanation": {
        "url": "https://example.org/private/", "known": True, "state": "excluded",
        "why": ["robots.txt of its host forbids it"], "in_scope": True, "linked_from": _SEED, "blocking_reason": None,
        "rules": [{"rule": "robots", "allowed": False, "detail": "Disallow: /private/"}],
    },
    "PageSummary": _LOOK,
    "PageDetail": {
        **_LOOK, "latency_ms": 85, "links": 42, "links_found": 51, "left_out": {"other_host": 9}, "redirect": None,
        "etag": '"5f-3c0a"', "last_modified": None,
        "history": [{"at": _AT, "status": 503, "reason": "http_503"}],
    },
    "HostSummary": _HOST,
    "QueueSummary": {"crawl": "docs", "queued": 280, "waiting": 8, "leased": 12, "pages": 870},
    "Cluster": {
        "member": "m1", "leading": True, "leader_address": "10.0.0.11:8080", "term": 42, "masters": [_MASTER],
        "workers": 12, "config_revision": 3, "worker_revisions": {"3": 12}, "outdated_members": [],
        "drains": {"masters": [], "workers": []}, "partitions": {"0": "m1", "1": "m1"},
    },
    "Master": _MASTER,
    "Worker": {
        "id": "w1", **_MEMBER, "pool": "default", "capacity": 64,
        "load": {
            "visits": 1024, "active_visits": 12, "free_visits": 1012, "in_flight": 3, "pages": 870,
            "bytes": 15877500, "pages_per_s": 4.2,
            "resource_pressure": [], "uptime_s": 3600.0,
        },
    },
    "DrainState": {"id": "w1", "role": "worker", "draining": True, "alive": True},
    "ConfigRevision": {
        "revision": 3, "changed_at": _AT, "changed_by": f"terraform ({_KEY})",
        "config": {"worker": {"max_visits": 512}},
    },
    "DeadLetter": {
        "id": 5, "crawl_id": 7, "kind": "url", "partition": 12, "at": _LATER, "url": _URL,
        "evidence": "5 grants of it ran out without a report",
    },
    "IssuedKey": {**_KEPT, "key": f"orb_{_KEY}_" + "k" * 43},
    "KeyView": {**_KEPT, "created_by": f"first admin ({_KEY[::-1]})", "revoked_at": None},
    "AuditEntry": {
        "id": 99, "at": _LATER, "actor": f"terraform ({_KEY})", "request": "0d3c5f1f4f1b4d6c8a52",
        "action": "crawl.pause", "target": "docs", "before": {"state": "running"}, "after": {"state": "paused"},
    },
    "Readiness": {"status": "ok", "missing": [], "resource_pressure": []},
}  # fmt: skip
"""Examples by the name of the schema."""

_FIELDS: Final = [
    {"path": "spec.scope.mode", "message": "expected one of host, domain, prefix, any, got 'hots'",
     "hint": "did you mean host?"}
]  # fmt: skip
_DOCS: Final = "there is no crawl 'docs'"

_PROBLEMS: Final[dict[ProblemKind, dict[str, Any]]] = {
    ProblemKind.MALFORMED: {"detail": "the body is not JSON: Expecting value"},
    ProblemKind.UNAUTHENTICATED: {
        "detail": "the API key is not known, or was revoked",
        "hint": "a key is shown once, when it is made; `orb key create` replaces a lost admin key",
    },
    ProblemKind.FORBIDDEN: {"detail": "this needs the role operator, and the key 'dashboard' has viewer"},
    ProblemKind.NOT_FOUND: {"detail": _DOCS},
    ProblemKind.EXISTS: {"detail": "there is a crawl 'docs' already"},
    ProblemKind.LAST_ADMIN: {
        "detail": "'first' is the last key with the role admin",
        "hint": "create another admin key first",
    },
    ProblemKind.FULL: {
        "detail": "there are 10000 crawls already, as many as there may be",
        "hint": "delete crawls that are no longer needed, or raise master.max_crawls (/v1/config)",
    },
    ProblemKind.NO_ARCHIVE: {
        "detail": "no archive is configured on this master",
        "hint": "start this master with --archive DIR (ORB_ARCHIVE), where it can read the workers' segments",
    },
    ProblemKind.ILLEGAL_TRANSITION: {
        "detail": "a crawl that is finished does not allow pause",
        "hint": "allowed now: start, delete, reset, retry-failed",
        "allowed_verbs": ["start", "delete", "reset", "retry-failed"],
    },
    ProblemKind.LOST_UPDATE: {
        "detail": "the current version is 7-4",
        "hint": "get the current version, apply the change to it, and send that with its ETag",
    },
    ProblemKind.TOO_LARGE: {"detail": "a body may have 4194304 bytes"},
    ProblemKind.MEDIA: {
        "detail": "the content type of the body is not JSON",
        "hint": "send the header `Content-Type: application/json`",
    },
    ProblemKind.INVALID: {"detail": "the crawl spec cannot be used", "errors": _FIELDS},
    ProblemKind.REUSED_KEY: {
        "detail": "the idempotency key was used for another request", "hint": "use a new key for every new request",
    },
    ProblemKind.BUSY: {
        "detail": "the owners of partitions have too many discoveries waiting", "accepted": 250000,
        "durable_lines": 250012,
    },
    ProblemKind.NO_LEADER: {"detail": "there is no leader at the moment; reads still work"},
    ProblemKind.UNAVAILABLE: {"detail": "the database does not answer"},
}  # fmt: skip


def problem_examples() -> dict[str, Any]:
    """Return an example of each kind of problem, by the last part of its `type`, for the document's components."""
    return {
        kind.value[0]: {
            "summary": kind.value[2],
            "value": {
                "type": TYPE + kind.value[0],
                "title": kind.value[2],
                "status": kind.value[1],
                "instance": "/v1/crawls/docs",
                "request_id": "0d3c5f1f4f1b4d6c8a52",
                **problem,
            },
        }
        for kind, problem in _PROBLEMS.items()
    }
