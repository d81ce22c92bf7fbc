"""Verbs apply, create and delete of `orb ctl`: make crawls and schedules match files, create and delete them."""

import argparse
import sys
import uuid
from collections.abc import Iterable, Mapping
from typing import Any, Final

from cli.ctl.cells import NONE, shown
from cli.ctl.client import Client, ClientResponse, path
from cli.ctl.declared import Declared, misnamed, read
from cli.ctl.problems import ProblemAnswer, Refusal
from cli.ctl.verb_context import VerbContext, Verbs
from cli.local.spec_flags import add_flags, merged, refuse_option
from cli.terminal.exits import Exit, Usage
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
    """Add the verbs apply, create and delete to `orb ctl`."""
    apply = verbs.add("apply", "create or update crawls and schedules to match the files", _apply)
    _files(apply, required=True)
    apply.add_argument("--dry-run", action="store_true", help="only show what would change")

    create = verbs.add("create", "create crawls from files or URLs; fail if one exists", _create)
    create.add_argument("names", nargs="*", metavar="NAME URL", help="the crawl's name and its seed URLs")
    _files(create, required=False)
    create.add_argument("--no-start", action="store_true", help="do not start them")
    add_flags(create)

    delete = verbs.add(
        "delete",
        "delete crawls, schedules, exclusions, host policies and seed sets (as CRAWL/SET), revoke keys, discard"
        " dead letters",
        _delete,
    )
    delete.add_argument("kind", nargs="?", metavar="KIND", help=", ".join(_REMOVED))
    delete.add_argument("names", nargs="*", metavar="NAME")
    _files(delete, required=False)
    delete.add_argument("--ignore-missing", action="store_true", help="do not fail if something does not exist")


def _files(parser: argparse.ArgumentParser, *, required: bool) -> None:
    parser.add_argument(
        "-f", "--file", action="append", metavar="FILE", required=required, default=None if required else [],
        help="a file, a folder of them, or - for standard input; YAML or JSON, any number of documents; repeatable",
    )  # fmt: skip


# --- apply ------------------------------------------------------------------------------------------------------------


def _apply(desk: VerbContext, arguments: argparse.Namespace) -> int:
    """Apply the files. Validate every crawl and schedule before changing any."""
    crawls = read(arguments.file, sys.stdin)
    plans = [(crawl, _plan(desk.client, crawl)) for crawl in crawls]
    if arguments.dry_run:
        _show_plans(desk, plans)
        return Exit.OK
    for crawl, plan in plans:
        if plan["action"] == "none":
            body = None if desk.output.for_people else desk.client.get(path(crawl.plural, crawl.name)).body
            desk.output.done(f"{crawl.kind}/{crawl.name}", "unchanged", body)
            continue
        with _Sourced(crawl):
            answer = desk.client.ask("PUT", path(crawl.plural, crawl.name), body=crawl.body)
        created = answer.status == 201 or (answer.unsure and plan["action"] == "create")
        desk.output.done(f"{crawl.kind}/{crawl.name}", "created" if created else "configured", answer.body)
    return Exit.OK


def _plan(client: Client, crawl: Declared) -> Mapping[str, Any]:
    with _Sourced(crawl):
        if (wrong := misnamed(crawl)) is not None:
            raise Refusal(ProblemAnswer(422, "invalid", "the request is not valid", errors=(wrong,)))
        plan: Mapping[str, Any] = client.ask("POST", path(crawl.plural, crawl.name, "plan"), body=crawl.body).body
        return plan


def _show_plans(desk: VerbContext, plans: Iterable[tuple[Declared, Mapping[str, Any]]]) -> None:
    if not desk.output.for_people:
        desk.output.document({"items": [{"kind": crawl.kind, "name": crawl.name, **plan} for crawl, plan in plans]})
        return
    for crawl, plan in plans:
        match plan["action"]:
            case "none":
                desk.output.say(f"{crawl.kind}/{crawl.name} would not change")
            case "create":
                state = f", {plan['state']}" if "state" in plan else ""
                desk.output.say(f"{crawl.kind}/{crawl.name} would be created{state}", "green")
            case "update" if crawl.kind == "schedule":
                desk.output.say(f"schedule/{crawl.name} would change", "yellow")
            case _:
                desk.output.say(
                    f"crawl/{crawl.name} would become revision {plan['revision']}, {plan['state']}", "yellow"
                )
        for change in plan["changes"]:
            for sign, name, style in (("-", "before", "red"), ("+", "after", "green")):
                if change.get(name) is not None:
                    desk.output.say(f"  {sign} {shown(change['path'])}: {_brief(change[name])}", style)


def _brief(value: Any) -> str:
    """Return a value of a spec on one line."""
    if isinstance(value, list) and value and isinstance(value[0], dict) and "url" in value[0]:
        value = [seed.get("url") for seed in value]
    if isinstance(value, list) and len(value) > 5:
        return ", ".join(map(shown, value[:5])) + f" and {len(value) - 5} more"
    return ", ".join(map(shown, value)) or NONE if isinstance(value, list) else shown(value)


# --- create and delete ------------------------------------------------------------------------------------------------


def _create(desk: VerbContext, arguments: argparse.Namespace) -> int:
    crawls = read(arguments.file, sys.stdin) if arguments.file else []
    if arguments.names:
        name, *urls = arguments.names
        if arguments.file:
            raise Usage("files and a name with URLs cannot be combined.")
        if not urls:
            raise Usage(f"no URLs given for {name}: run `orb ctl create {name} https://example.org/`.")
        for url in urls:
            refuse_option(url)
        spec = merged({}, [url if "://" in url else with_scheme(url) for url in urls], arguments)
        crawls = [Declared(name, {"spec": spec}, "the command line")]
    if not crawls:
        raise Usage("no crawl given: set files with -f, or a name and its seed URLs.")
    for crawl in crawls:
        waits = {"start": False} if arguments.no_start and crawl.kind == "crawl" else {}
        body = {"name": crawl.name, **crawl.body} | waits
        headers = {"Idempotency-Key": uuid.uuid4().hex}
        with _Sourced(crawl):
            made = desk.client.ask("POST", path(crawl.plural), body=body, headers=headers)
        desk.output.done(f"{crawl.kind}/{crawl.name}", "created", made.body)
    return Exit.OK


def _delete(desk: VerbContext, arguments: argparse.Namespace) -> int:
    if arguments.file:
        if arguments.kind is not None:
            raise Usage("files and a kind with names cannot be combined.")
        for declared in reversed(read(arguments.file, sys.stdin)):
            _delete_named(desk, declared.kind, [declared.name], ignore=arguments.ignore_missing)
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
    """Return the path of a resource. A seed set is named by its crawl and its name, as CRAWL/SET."""
    if kind != "seed-set":
        return path(plural, name)
    crawl, slash, of_set = name.partition("/")
    if not slash:
        raise Usage(f"{name!r} names no seed set: write CRAWL/SET.")
    return path("crawls", crawl, plural, of_set)


def _removed(client: Client, at: str, *, ignore: bool) -> ClientResponse | None:
    """Delete; return the answer, or None if it does not exist. After a lost answer, a 404 counts as success."""
    try:
        return client.ask("DELETE", at)
    except Refusal as refusal:
        if refusal.problem.status != 404 or not (ignore or refusal.unsure):
            raise
        return None if not refusal.unsure else ClientResponse(204, None)


class _Sourced:
    """Adds the source file to a master's error about a crawl."""

    def __init__(self, crawl: Declared) -> None:
        self._crawl = crawl

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Refusal) and error.problem.status == 422:
            answer = error.problem
            detail = f"{self._crawl.source}: {self._crawl.kind} {self._crawl.name}: {answer.detail}"
            problem = ProblemAnswer(answer.status, answer.kind, detail, answer.hint, answer.errors, answer.request_id)
            raise Refusal(problem, unsure=error.unsure) from error
