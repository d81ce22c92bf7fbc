"""Verbs create and delete of `orb ctl`, for resources that the user names or declares in files.

Unlike `apply`, `create` fails if a resource exists already.
"""

import argparse
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from cli.ctl.client import Client, ClientResponse, path
from cli.ctl.estate.apply import create, created_before, files_option, show_done
from cli.ctl.estate.declared import Declared, read
from cli.ctl.estate.kinds import API_KEY, CONFIG, CRAWL
from cli.ctl.estate.plans import Sourced, present
from cli.ctl.problems import Refusal
from cli.ctl.verb_context import VerbContext, Verbs
from cli.local.spec_flags import add_flags, merged, refuse_option
from cli.terminal.exits import Exit, Failed, Usage
from shared.domain.web.url import with_scheme

_REMOVED: Final[Mapping[str, tuple[str, str]]] = {
    "crawl": ("crawls", "deleted"),
    "exclusion": ("exclusions", "deleted"),
    "schedule": ("schedules", "deleted"),
    "host-policy": ("host-policies", "deleted"),
    "seed-set": ("seed-sets", "deleted"),
    "key": ("api-keys", "revoked"),
    "dead-letter": ("dead-letters", "discarded"),
}


_SINGULAR: Final[Mapping[str, str]] = {"host-policies": "host-policy"}


def declare(verbs: Verbs) -> None:
    """Add the verbs create and delete to `orb ctl`."""
    creation = verbs.add("create", "create crawls from URLs, or resources from files; fail if one exists", _create)
    creation.add_argument("names", nargs="*", metavar="NAME URL", help="the crawl's name and its seed URLs")
    files_option(creation, required=False)
    creation.add_argument("--no-start", action="store_true", help="do not start crawls")
    add_flags(creation)

    delete = verbs.add(
        "delete",
        "delete crawls, schedules, exclusions, host policies and seed sets (as CRAWL/SET), revoke keys, discard"
        " dead letters",
        _delete,
    )
    delete.add_argument("kind", nargs="?", metavar="KIND", help=", ".join(_REMOVED))
    delete.add_argument("names", nargs="*", metavar="NAME")
    files_option(delete, required=False)
    delete.add_argument("--ignore-missing", action="store_true", help="do not fail if something does not exist")


def _create(desk: VerbContext, arguments: argparse.Namespace) -> int:
    resources = read(arguments.file, sys.stdin) if arguments.file else []
    if arguments.names:
        name, *urls = arguments.names
        if arguments.file:
            raise Usage("files and a name with URLs cannot be combined.")
        if not urls:
            raise Usage(f"no URLs given for {name}: run `orb ctl create {name} https://example.org/`.")
        for url in urls:
            refuse_option(url)
        spec = merged({}, [url if "://" in url else with_scheme(url) for url in urls], arguments)
        resources = [Declared(name, {"spec": spec}, "the command line")]
    if not resources:
        raise Usage("no crawl given: set files with -f, or a name and its seed URLs.")
    for each in resources:
        if each.kind is CONFIG:
            raise Usage(f"{each.source}: a cluster always has a config, so it cannot be created: use `orb ctl apply`.")
    if any(each.has_secret for each in resources):
        desk.check_shows_secrets()
    for each in resources:
        waits = {"start": False} if arguments.no_start and each.kind is CRAWL else {}
        try:
            with Sourced(each):
                made = create(desk.client, replace(each, body={**each.body, **waits}))
        except Refusal as refusal:
            lost_secret = refusal.unsure and refusal.problem.kind == "exists" and each.has_secret
            if refusal.problem.status != 412 and not lost_secret:
                raise
            made = created_before(desk.client, each) if refusal.unsure else None
            if made is None:
                raise Failed(f"{each.source}: {each.title} exists already: change it with `orb ctl apply`.") from None
        show_done(desk, each, "created", made)
    return Exit.OK


def _delete(desk: VerbContext, arguments: argparse.Namespace) -> int:
    if arguments.file:
        if arguments.kind is not None:
            raise Usage("files and a kind with names cannot be combined.")
        backwards = reversed(read(arguments.file, sys.stdin))
        for declared in sorted(backwards, key=lambda each: each.kind is API_KEY):  # one of them may carry all this out
            _delete_declared(desk, declared, ignore=arguments.ignore_missing)
        return Exit.OK
    kind, names = _SINGULAR.get(arguments.kind, (arguments.kind or "").removesuffix("s")), arguments.names
    if kind not in _REMOVED:
        raise Usage(f"cannot delete {arguments.kind!r}: expected one of {', '.join(_REMOVED)}.")
    if not names:
        raise Usage(f"no name given: run `orb ctl delete {kind} NAME`.")
    _delete_named(desk, kind, names, ignore=arguments.ignore_missing)
    return Exit.OK


def _delete_named(desk: VerbContext, kind: str, names: Iterable[str], *, ignore: bool) -> None:
    plural, done = _REMOVED[kind]
    for name in names:
        answer = _removed(desk.client, _place(kind, plural, name), ignore=ignore)
        desk.output.done(f"{kind}/{name}", "not found" if answer is None else done, answer and answer.body)


def _place(kind: str, plural: str, name: str) -> str:
    """Return the API path of the resource `name`.

    - `kind`: the word for the kind of resource, such as `crawl`.
    - `plural`: the name of the kind's list in an API path, such as `crawls`.
    - `name`: the name of the resource. For a seed set it is CRAWL/SET. Raise Usage if its slash is missing.
    """
    if kind != "seed-set":
        return path(plural, name)
    crawl, slash, of_set = name.partition("/")
    if not slash:
        raise Usage(f"{name!r} names no seed set: write CRAWL/SET.")
    return path("crawls", crawl, plural, of_set)


def _delete_declared(desk: VerbContext, declared: Declared, *, ignore: bool) -> None:
    if declared.kind is CONFIG:
        desk.note("the config is left as it is: a cluster always has one")
        return
    if declared.kind.numbered:
        there = present(desk.client, declared.kind, declared.name)
        if there is None and not ignore:
            raise Failed(f"{declared.source}: there is no {declared.kind.name} {declared.name!r}.")
        at = None if there is None else there.at
    else:
        at = declared.kind.path(declared.name)
    answer = None if at is None else _removed(desk.client, at, ignore=ignore)
    desk.output.done(declared.title, "not found" if answer is None else "deleted", answer and answer.body)


def _removed(client: Client, at: str, *, ignore: bool) -> ClientResponse | None:
    """Delete the resource at the API path `at`, and return the answer. Raise Refusal if a master refuses.

    If the resource does not exist, there are two cases:

    - An earlier attempt of this call may have deleted it: the deletion counts as successful.
    - Otherwise: raise Refusal, or return None if `ignore` is True.
    """
    try:
        return client.ask("DELETE", at)
    except Refusal as refusal:
        if refusal.problem.status != 404 or not (ignore or refusal.unsure):
            raise
        return None if not refusal.unsure else ClientResponse(204, None)
