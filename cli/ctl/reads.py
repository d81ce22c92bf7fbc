"""Verbs get, describe, explain, lookup, lag and stats of `orb ctl`. They only read, so any master answers them, even
without a leader.
"""

import argparse
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final, assert_never

from cli.ctl.client import Client, Query, path, segment
from cli.ctl.layouts import cluster_sections, crawl_sections, explanation, lag_sections, sections_of, stats_sections
from cli.ctl.problems import ProblemAnswer, Refusal
from cli.ctl.resources import (
    CLUSTER,
    CONFIG,
    CONFIG_VALUES,
    CRAWLS,
    HOSTS,
    HOSTS_OF_NO_CRAWL,
    KINDS,
    REVISIONS,
    SCHEDULES,
    Belongs,
    ResourceKind,
    named,
)
from cli.ctl.verb_context import VerbContext, Verbs
from cli.local.spec_flags import labels_given
from cli.terminal.exits import Exit, Usage

_FILTERS: Final = {
    "state": "crawls and URLs in this state",
    "host": "URLs and pages of this host",
    "prefix": "crawls whose names begin with this",
    "status": "pages with this HTTP status",
    "mime": "pages of this media type",
    "rule": "items of this rule",
    "url": "items of this page",
    "actor": "entries of the key with this name or id",
    "action": "entries with this action, as crawl.pause; `crawl.` is a prefix",
    "target": "entries with this target",
    "revoked": "true: include revoked keys",
    "since": "entries from this time on, as 2030-01-01T00:00:00Z",
    "until": "entries before this time",
}
"""The options of `get` that filter a list, with their help texts.

Each kind of resource accepts only the options in its `ResourceKind.filters`.
"""

_HISTORY: Final = 20
"""Maximum entries of a schedule's history that `describe` shows."""

_OF_A_CRAWL: Final = frozenset(("queued", "waiting", "leased", "pages"))


def declare(verbs: Verbs) -> None:
    """Add the verbs get, describe, explain, lookup, lag and stats to `orb ctl`."""
    get = verbs.add("get", "list resources, or show some by name", _get)
    get.add_argument("kind", metavar="KIND", help=f"singular or plural: {KINDS}")
    get.add_argument("names", nargs="*", metavar="NAME", help="only these")
    get.add_argument("-c", "--crawl", metavar="CRAWL", help="only of this crawl")
    get.add_argument("-l", "--label", metavar="NAME=VALUE", action="append", help="crawls with this label; repeatable")
    for name, summary in _FILTERS.items():
        get.add_argument(f"--{name}", metavar=name.upper(), help=summary)
    get.add_argument("--limit", type=_positive, metavar="N", help="at most N entries (default: all)")

    describe = verbs.add("describe", "show all details of one resource", _describe)
    describe.add_argument("kind", metavar="KIND", help=f"singular or plural: {KINDS}")
    describe.add_argument("names", nargs="*", metavar="NAME")
    describe.add_argument("-c", "--crawl", metavar="CRAWL", help="only of this crawl")

    for verb, name, summary in (
        (_explain, "explain", "explain the state of a URL and the rules that apply to it, even if it is not known"),
        (_lookup, "lookup", "show all details of a URL"),
    ):
        parser = verbs.add(name, summary, verb)
        parser.add_argument("crawl", metavar="CRAWL")
        parser.add_argument("url", metavar="URL", help="the URL")
    lag = verbs.add("lag", "show what waits and for how long, in the cluster or in one crawl", _lag)
    lag.add_argument("crawl", nargs="?", metavar="CRAWL")
    stats = verbs.add("stats", "show a crawl's counters, answers, errors and largest hosts", _stats)
    stats.add_argument("crawl", metavar="CRAWL")


def _kind(arguments: argparse.Namespace) -> ResourceKind:
    """Return the kind of resource that the command names.

    The configuration has two kinds: CONFIG as a whole, and CONFIG_VALUES if the command names single values.
    """
    resource = named(arguments.kind)
    return CONFIG_VALUES if resource is CONFIG and arguments.names else resource


def _get(desk: VerbContext, arguments: argparse.Namespace) -> int:
    resource = _kind(arguments)
    at = _path(resource, arguments.crawl)
    query = _query(resource, arguments)
    if resource is REVISIONS or (resource is CRAWLS and not desk.output.for_people):
        query = {**query, "fields": "spec"}
    if resource is HOSTS and arguments.crawl is None:
        resource = HOSTS_OF_NO_CRAWL
    if arguments.names:
        rows = (one(desk.client, resource, at, name) for name in arguments.names)
        if len(arguments.names) == 1:
            desk.output.one(resource, next(rows))
        else:
            desk.output.items(resource, rows)
    elif not resource.key:
        desk.output.one(resource, desk.client.get(at).body)
    else:
        desk.output.items(resource, desk.client.items(at, query, limit=arguments.limit, on_page=partial(_gap, desk)))
    return Exit.OK


def _gap(desk: VerbContext, page: Mapping[str, Any]) -> None:
    """Print a note if a page of a list has the field `gap`, because retention has deleted the oldest changes."""
    if gap := page.get("gap"):
        desk.note(f"the changes up to {gap['deleted_until']} are deleted (retention.changes_days)")


def _describe(desk: VerbContext, arguments: argparse.Namespace) -> int:
    resource = _kind(arguments)
    at = _path(resource, arguments.crawl)
    if not resource.key:
        body = desk.client.get(at).body
        laid_out = cluster_sections if resource is CLUSTER else sections_of
        desk.output.sections(body, partial(laid_out, resource.one, body))
        return Exit.OK
    if not arguments.names:
        raise Usage(f"no name given: run `orb ctl describe {resource.one} NAME`.")
    bodies = (_described(desk.client, resource, at, name) for name in arguments.names)
    if not desk.output.for_people and len(arguments.names) > 1:
        desk.output.document({"items": list(bodies)})
        return Exit.OK
    for name, body in zip(arguments.names, bodies, strict=True):
        if resource is CRAWLS:
            desk.output.sections(body, partial(crawl_sections, body))
        else:
            desk.output.sections(body, partial(sections_of, f"{resource.one} {name}", body))
    return Exit.OK


def _described(client: Client, resource: ResourceKind, at: str, name: str) -> Mapping[str, Any]:
    """Return all details of the resource `name`, from several requests where needed.

    `at` is the API path of its list.
    """
    if resource is CRAWLS:
        return {
            "crawl": client.get(path("crawls", name)).body,
            "progress": client.get(path("crawls", name, "progress")).body,
            "stats": client.get(path("crawls", name, "stats")).body,
        }
    body = _single(client, resource, at, name)
    if resource is SCHEDULES:
        return {**body, "history": list(client.items(path("schedules", name, "history"), {}, limit=_HISTORY))}
    if not resource.within:
        return body
    # A host's counters belong to crawls: its queues have them.
    thing = {key: value for key, value in body[resource.within].items() if key not in _OF_A_CRAWL}
    return {**thing, **{key: value for key, value in body.items() if key != resource.within}}


def _explain(desk: VerbContext, arguments: argparse.Namespace) -> int:
    body = desk.client.get(path("crawls", arguments.crawl, "urls", "explain"), {"url": url_of(arguments.url)}).body
    desk.output.sections(body, partial(explanation, body))
    return Exit.OK


def _lookup(desk: VerbContext, arguments: argparse.Namespace) -> int:
    body = desk.client.get(path("crawls", arguments.crawl, "urls", "lookup"), {"url": url_of(arguments.url)}).body
    desk.output.sections(body, partial(sections_of, "", body))
    return Exit.OK


def _lag(desk: VerbContext, arguments: argparse.Namespace) -> int:
    body = desk.client.get(path("lag") if arguments.crawl is None else path("crawls", arguments.crawl, "lag")).body
    desk.output.sections(body, partial(lag_sections, body))
    return Exit.OK


def _stats(desk: VerbContext, arguments: argparse.Namespace) -> int:
    body = desk.client.get(path("crawls", arguments.crawl, "stats")).body
    desk.output.sections(body, partial(stats_sections, body))
    return Exit.OK


def one(client: Client, resource: ResourceKind, at: str, name: str) -> Mapping[str, Any]:
    """Return the resource with this name, with the fields that a list shows. Raise Refusal if it does not exist.

    `at` is the API path of the list that contains the resource.
    """
    body = _single(client, resource, at, name)
    row: Mapping[str, Any] = body[resource.within] if resource.within else body
    return row


def url_of(text: str) -> str:
    """Return the URL that the user typed, with https:// before it if it has no scheme."""
    return text if "://" in text else f"https://{text}"


def _single(client: Client, resource: ResourceKind, at: str, name: str) -> Mapping[str, Any]:
    if resource.single == "":
        return _in_list(client.items(at), resource, name)
    if resource.single is not None:
        base, _, parameter = resource.single.partition("?")
        body = client.get(at + base.removeprefix(resource.path), {parameter.rstrip("="): url_of(name)}).body
    else:
        body = client.get(f"{at}/{segment(name, resource.one)}").body
    row: Mapping[str, Any] = body
    return row


def _in_list(rows: Iterator[dict[str, Any]], resource: ResourceKind, name: str) -> Mapping[str, Any]:
    for row in rows:
        if name == row.get(resource.key):
            return row
    raise Refusal(ProblemAnswer(404, "not-found", f"there is no {resource.one} {name!r}"))


def _path(resource: ResourceKind, crawl: str | None) -> str:
    if resource.belongs is not Belongs.TO_CRAWL:
        return resource.path
    if crawl is None:
        raise Usage(f"no crawl given: run `orb ctl get {resource.name} --crawl CRAWL`.")
    return resource.path.replace("{crawl}", segment(crawl, "crawl"))


def _query(resource: ResourceKind, arguments: argparse.Namespace) -> Query:
    names = ("label", *_FILTERS)
    given = {name: getattr(arguments, name) for name in names if getattr(arguments, name) is not None}
    for name in given:
        if name not in resource.filters:
            raise Usage(f"--{name} does not apply to {resource.name}.")
        if arguments.names:
            raise Usage(f"--{name} cannot be combined with names.")
    if arguments.label is not None:
        labels_given(arguments.label, "-l")
    if arguments.crawl is not None:
        if arguments.names and resource.belongs is Belongs.TO_CLUSTER_OR_CRAWL:
            raise Usage("--crawl cannot be combined with names.")
        match resource.belongs:
            case Belongs.TO_CLUSTER:
                raise Usage(f"--crawl does not apply to {resource.name}, which belong to the cluster.")
            case Belongs.TO_CLUSTER_OR_CRAWL:
                given["crawl"] = arguments.crawl
            case Belongs.TO_CRAWL:
                pass  # it is in the path
            case _:
                assert_never(resource.belongs)
    return given


def _positive(text: str) -> int:
    if text.isascii() and text.isdigit() and int(text) > 0:
        return int(text)
    raise Usage(f"expected a whole number, at least 1, got {text!r}.")
