"""The table of rights: which role may use which verb on which resource.

No other place grants a right. `api.http.routing` looks up each route here, and raises for a route without a row. The
OpenAPI document shows the table as `x-orb-right`, and docs/security.md as a table.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from shared.domain.ops.access import Role

VIEWER, OPERATOR, ADMIN = Role.VIEWER, Role.OPERATOR, Role.ADMIN


class UndeclaredRoute(RuntimeError):
    """Raised at start if a route has no row in the table of rights, so that the process does not start."""


class RouteClass(StrEnum):
    """The class of a route by its cost. For each class, `Permits` limits a key's requests per second separately.

    READ: one response from memory or an index. WRITE: a change. BULK: a stream, an export or an upload.
    """

    READ = "read"
    WRITE = "write"
    BULK = "bulk"


@dataclass(frozen=True, slots=True)
class Right:
    """One row of the table: the role that a client needs to send `method` to `path`.

    `role`: None if the route needs no API key. `path`: a template, such as `/v1/crawls/{name}`.
    """

    resource: str
    verb: str
    method: str
    path: str
    role: Role | None
    route_class: RouteClass

    def allows(self, role: Role) -> bool:
        """Return True if an identity with `role` may send this request."""
        return self.role is None or role.covers(self.role)


_Row = tuple[str, str, Role | None] | tuple[str, str, Role | None, RouteClass]
_BULK: Final = RouteClass.BULK
_CRAWL: Final = "/v1/crawls/{name}"

_TABLE: Final[Mapping[str, tuple[_Row, ...]]] = {
    "crawls": (
        ("list", "GET /v1/crawls", VIEWER),
        ("create", "POST /v1/crawls", OPERATOR),
        ("get", f"GET {_CRAWL}", VIEWER),
        ("put", f"PUT {_CRAWL}", OPERATOR),
        ("patch", f"PATCH {_CRAWL}", OPERATOR),
        ("delete", f"DELETE {_CRAWL}", OPERATOR),
        ("plan", f"POST {_CRAWL}/plan", VIEWER),
        ("list revisions", f"GET {_CRAWL}/revisions", VIEWER),
        ("get revision", f"GET {_CRAWL}/revisions/{{revision}}", VIEWER),
        ("compare revisions", f"GET {_CRAWL}/revisions/{{revision}}/diff", VIEWER),
        ("start", f"POST {_CRAWL}/start", OPERATOR),
        ("pause", f"POST {_CRAWL}/pause", OPERATOR),
        ("resume", f"POST {_CRAWL}/resume", OPERATOR),
        ("cancel", f"POST {_CRAWL}/cancel", OPERATOR),
        ("refresh", f"POST {_CRAWL}/refresh", OPERATOR),
        ("reset", f"POST {_CRAWL}/reset", OPERATOR),
        ("retry-failed", f"POST {_CRAWL}/retry-failed", OPERATOR),
    ),
    "commands": (("get", "GET /v1/commands/{command_id}", VIEWER),),
    "seeds": (
        ("list", f"GET {_CRAWL}/seeds", VIEWER),
        ("add", f"POST {_CRAWL}/seeds", OPERATOR, _BULK),
        ("delete", f"DELETE {_CRAWL}/seeds", OPERATOR, _BULK),
    ),
    "seed-sets": (
        ("list", f"GET {_CRAWL}/seed-sets", VIEWER),
        ("get", f"GET {_CRAWL}/seed-sets/{{set}}", VIEWER),
        ("put", f"PUT {_CRAWL}/seed-sets/{{set}}", OPERATOR),
        ("delete", f"DELETE {_CRAWL}/seed-sets/{{set}}", OPERATOR),
        ("plan", f"POST {_CRAWL}/seed-sets/{{set}}/plan", VIEWER),
    ),
    "progress": (
        ("get numbers", f"GET {_CRAWL}/stats", VIEWER),
        ("get progress", f"GET {_CRAWL}/progress", VIEWER),
        ("get lag", f"GET {_CRAWL}/lag", VIEWER),
        ("get the cluster's lag", "GET /v1/lag", VIEWER),
    ),
    "events": (
        ("follow", "GET /v1/events", VIEWER, _BULK),
        ("follow a crawl", f"GET {_CRAWL}/events", VIEWER, _BULK),
    ),
    "urls": (
        ("list", f"GET {_CRAWL}/urls", VIEWER),
        ("look up", f"GET {_CRAWL}/urls/lookup", VIEWER),
        ("explain", f"GET {_CRAWL}/urls/explain", VIEWER),
    ),
    "pages": (
        ("list", f"GET {_CRAWL}/pages", VIEWER),
        ("look up", f"GET {_CRAWL}/pages/lookup", VIEWER),
        ("look up a body", f"GET {_CRAWL}/pages/lookup/body", VIEWER),
        ("get", f"GET {_CRAWL}/pages/{{page}}", VIEWER),
        ("get body", f"GET {_CRAWL}/pages/{{page}}/body", VIEWER),
        ("list versions", f"GET {_CRAWL}/pages/{{page}}/versions", VIEWER),
        ("get a version's body", f"GET {_CRAWL}/pages/{{page}}/versions/{{version}}/body", VIEWER),
        ("compare versions", f"GET {_CRAWL}/pages/{{page}}/diff", VIEWER),
        ("list changes", f"GET {_CRAWL}/changes", VIEWER),
        ("follow changes", f"GET {_CRAWL}/changes/stream", VIEWER, _BULK),
        ("query captures", f"GET {_CRAWL}/cdx", VIEWER),
        ("get segment", f"GET {_CRAWL}/segments/{{segment}}", VIEWER, _BULK),
        ("export", f"GET {_CRAWL}/export/{{what}}", VIEWER, _BULK),
    ),
    "items": (
        ("list", f"GET {_CRAWL}/items", VIEWER),
        ("get", f"GET {_CRAWL}/items/{{item}}", VIEWER),
    ),
    "hosts": (
        ("list", "GET /v1/hosts", VIEWER),
        ("get", "GET /v1/hosts/{host}", VIEWER),
        ("unblock", "POST /v1/hosts/{host}/unblock", OPERATOR),
    ),
    "host-policies": (
        ("list", "GET /v1/host-policies", VIEWER),
        ("get", "GET /v1/host-policies/{host}", VIEWER),
        ("put", "PUT /v1/host-policies/{host}", OPERATOR),
        ("delete", "DELETE /v1/host-policies/{host}", OPERATOR),
        ("plan", "POST /v1/host-policies/{host}/plan", VIEWER),
    ),
    "exclusions": (
        ("list", "GET /v1/exclusions", VIEWER),
        ("create", "POST /v1/exclusions", OPERATOR),
        ("get", "GET /v1/exclusions/{exclusion_id}", VIEWER),
        ("put", "PUT /v1/exclusions/{exclusion_id}", OPERATOR),
        ("delete", "DELETE /v1/exclusions/{exclusion_id}", OPERATOR),
        ("plan", "POST /v1/exclusions/plan", VIEWER),
    ),
    "schedules": (
        ("list", "GET /v1/schedules", VIEWER),
        ("create", "POST /v1/schedules", OPERATOR),
        ("get", "GET /v1/schedules/{schedule}", VIEWER),
        ("put", "PUT /v1/schedules/{schedule}", OPERATOR),
        ("delete", "DELETE /v1/schedules/{schedule}", OPERATOR),
        ("plan", "POST /v1/schedules/{schedule}/plan", VIEWER),
        ("pause", "POST /v1/schedules/{schedule}/pause", OPERATOR),
        ("resume", "POST /v1/schedules/{schedule}/resume", OPERATOR),
        ("list firings", "GET /v1/schedules/{schedule}/history", VIEWER),
    ),
    "dead-letters": (
        ("list", "GET /v1/dead-letters", VIEWER),
        ("discard of a crawl", "DELETE /v1/dead-letters", OPERATOR),
        ("replay of a crawl", "POST /v1/dead-letters/replay", OPERATOR),
        ("get", "GET /v1/dead-letters/{letter}", VIEWER),
        ("discard", "DELETE /v1/dead-letters/{letter}", OPERATOR),
        ("replay", "POST /v1/dead-letters/{letter}/replay", OPERATOR),
    ),
    "cluster": (("get", "GET /v1/cluster", VIEWER),),
    "masters": (
        ("list", "GET /v1/masters", VIEWER),
        ("get", "GET /v1/masters/{id}", VIEWER),
        ("drain", "POST /v1/masters/{id}/drain", OPERATOR),
        ("undrain", "POST /v1/masters/{id}/undrain", OPERATOR),
    ),
    "workers": (
        ("list", "GET /v1/workers", VIEWER),
        ("get", "GET /v1/workers/{id}", VIEWER),
        ("drain", "POST /v1/workers/{id}/drain", OPERATOR),
        ("undrain", "POST /v1/workers/{id}/undrain", OPERATOR),
    ),
    "config": (
        ("get", "GET /v1/config", VIEWER),
        ("put", "PUT /v1/config", OPERATOR),
        ("plan", "POST /v1/config/plan", VIEWER),
        ("list revisions", "GET /v1/config/revisions", VIEWER),
        ("get revision", "GET /v1/config/revisions/{revision}", VIEWER),
        ("get value", "GET /v1/config/{value}", VIEWER),
        ("put value", "PUT /v1/config/{value}", OPERATOR),
        ("restore value", "DELETE /v1/config/{value}", OPERATOR),
    ),
    "api-keys": (
        ("list", "GET /v1/api-keys", ADMIN),
        ("create", "POST /v1/api-keys", ADMIN),
        ("get", "GET /v1/api-keys/{key_name}", ADMIN),
        ("put", "PUT /v1/api-keys/{key_name}", ADMIN),
        ("revoke", "DELETE /v1/api-keys/{key_name}", ADMIN),
        ("plan", "POST /v1/api-keys/{key_name}/plan", ADMIN),
    ),
    "audit": (("list", "GET /v1/audit", ADMIN),),
    "health": (
        ("check the process", "GET /livez", None),
        ("check the dependencies", "GET /readyz", None),
        ("read metrics", "GET /metrics", None),
    ),
    "docs": (
        ("find", "GET /", None),
        ("read with Swagger UI", "GET /docs", None),
        ("read with Redoc", "GET /redoc", None),
        ("get the pages' files", "GET /assets/{name}", None),
        ("get the document", "GET /openapi.json", None),
    ),
}


def _rows() -> Iterable[Right]:
    for resource, rows in _TABLE.items():
        for verb, request, role, *own_class in rows:
            method, _, path = request.partition(" ")
            usual = RouteClass.READ if method == "GET" else RouteClass.WRITE
            yield Right(resource, verb, method, path, role, own_class[0] if own_class else usual)


RIGHTS: Final = tuple(_rows())
_BY_REQUEST: Final[Mapping[tuple[str, str], Right]] = {(right.method, right.path): right for right in RIGHTS}


def right_of(method: str, path: str) -> Right:
    """Return the right that `method` on the route `path` (a template, as `/v1/crawls/{name}`) needs.

    Raise UndeclaredRoute if the table has no row for it.
    """
    try:
        return _BY_REQUEST[method, path]
    except KeyError:
        raise UndeclaredRoute(f"{method} {path} has no row in the table of rights (api/security/rights.py)") from None
