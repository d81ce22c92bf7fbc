"""Examples of problems for the OpenAPI document, one of each kind. A test validates them against the schema."""

from typing import Any, Final

from api.http.errors import TYPE, ProblemKind

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
    ProblemKind.RANGE: {"detail": "7-20300101080000-worker-1-0001.warc.gz has 48213 bytes"},
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
        "duplicate": 11, "rejected": 1, "durable_lines": 250012,
        "first_rejected": [
            {"line": 7, "url": "ftp://example.org/", "reason": "its scheme is not among scope.schemes"}
        ],
    },
    ProblemKind.RATE_LIMITED: {
        "detail": "the key 'ci' sent more than 500 requests a second of the class write",
        "hint": "wait as Retry-After says, and spread requests",
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
