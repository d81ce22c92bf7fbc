"""Compares declared resources with the cluster: what exists, what would change, and what no file declares."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cli.ctl.cells import NONE, shown
from cli.ctl.client import Client, path
from cli.ctl.estate.declared import Declared
from cli.ctl.estate.kinds import CRAWL, KINDS, DeclaredKind, Labelled, Labels
from cli.ctl.output import CtlOutput
from cli.ctl.problems import ProblemAnswer, Refusal, WrongField
from cli.terminal.exits import Usage

_NOT_OF_THE_FILE: Final = (401, 403, 429)
"""Statuses of refusals that do not depend on what the file declares: authentication, rights and the request limit."""

SHOWN: Final = 5
"""Maximum entries of a changed list that are shown, and maximum names in a message."""


@dataclass(frozen=True, slots=True)
class Present:
    """A resource of the cluster as a master shows it. `at` is its API path."""

    at: str
    body: Mapping[str, Any]
    etag: str | None


@dataclass(frozen=True, slots=True)
class Planned:
    """A declared resource, and the master's plan for it: what a PUT of the resource would change.

    `present` is the resource as the cluster has it. There are two reasons for None:

    - The resource does not exist.
    - The command only shows plans and applies none. Such a command does not read the resource.
    """

    declared: Declared
    present: Present | None
    plan: Mapping[str, Any]

    @property
    def action(self) -> str:
        """What the plan does with the resource: `create`, `update` or `none`."""
        return str(self.plan["action"])

    def same_as(self, other: "Planned") -> bool:
        """Return True if the resource did not change in the cluster between the two plans, or was missing both times.

        Fields that a file cannot declare are not compared.
        """
        kind = self.declared.kind
        mine, others = (None if each is None else kind.declared(each.body) for each in (self.present, other.present))
        return mine == others


@dataclass(frozen=True, slots=True)
class OnlyThere:
    """A resource that the cluster has and that no file declares."""

    kind: DeclaredKind
    name: str
    body: Mapping[str, Any]

    @property
    def title(self) -> str:
        """The resource's kind and name, as in messages: `crawl/docs`."""
        return self.kind.title(self.name)


class Sourced:
    """A context manager that adds the file and the resource's name to each Refusal raised in its `with` block.

    A refusal with status 401, 403, 429 or 5xx stays unchanged, because it is not about the resource.
    """

    def __init__(self, declared: Declared) -> None:
        self._declared = declared

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not isinstance(error, Refusal) or not 400 <= error.problem.status < 500:
            return
        if error.problem.status not in _NOT_OF_THE_FILE:
            raise Refusal(self._declared.sourced(error.problem), unsure=error.unsure) from error


def present(client: Client, kind: DeclaredKind, name: str) -> Present | None:
    """Return the resource of this kind and name as the cluster has it. Return None if it does not exist."""
    if kind.numbered:
        known = client.get(kind.at, {kind.key: name}).body["items"]
        if not known:
            return None
        name = str(known[0]["id"])
    at = kind.path(name)
    try:
        answer = client.get(at)
    except Refusal as refusal:
        if refusal.problem.status != 404:
            raise
        return None
    return Present(at, _named(kind, name, answer.body), answer.etag)


def existing(client: Client, kind: DeclaredKind, crawls: Iterable[str] | None = None) -> Iterator[Mapping[str, Any]]:
    """Yield all resources of a kind, with the fields that lists show.

    `crawls`: the names of the crawls whose resources are returned, None for all crawls. It is ignored for a kind that
    has one list for the whole cluster.
    """
    if not kind.key:
        yield client.get(kind.at).body
    elif not kind.of_crawl:
        yield from client.items(kind.at, kind.query)
    else:
        names = [str(each[CRAWL.key]) for each in client.items(CRAWL.at)] if crawls is None else crawls
        for crawl in names:
            try:
                for body in client.items(kind.list_path(crawl)):
                    yield {kind.crawl: crawl, **body}
            except Refusal as refusal:
                if refusal.problem.status != 404:  # the crawl was deleted since
                    raise


def _named(kind: DeclaredKind, name: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return `body`, a master's answer for one resource, completed with the name of the resource's crawl.

    `name`: the name of the resource. A kind with `of_crawl` has names of the form CRAWL/NAME, and CRAWL is added to
    `body`. For any other kind, return `body` unchanged.
    """
    return {kind.crawl: kind.crawl_of(name, body), **body} if kind.of_crawl else body


def planned(client: Client, declared: Declared, *, to_apply: bool) -> Planned:
    """Send the resource to a master for validation, and return the plan.

    Raise Refusal, with the file's name, if the resource is invalid. With `to_apply`, first read the resource from the
    cluster, so that the plan has its ETag. A later update with this ETag fails if another client has changed the
    resource meanwhile.
    """
    kind = declared.kind
    with Sourced(declared):
        if (wrong := declared.wrong) is not None:
            raise Refusal(ProblemAnswer(422, "invalid", "the request is not valid", errors=(wrong,)))
        there = present(client, kind, declared.name) if to_apply else None
        body = {kind.key: declared.name, **declared.body} if kind.numbered else declared.body
        return Planned(declared, there, client.ask("POST", kind.plan_path(declared.name), body=body).body)


def all_planned(client: Client, resources: Iterable[Declared], *, to_apply: bool) -> list[Planned]:
    """Return a plan for each resource, in order: what a PUT of the resource would change in the cluster.

    Raise Usage with the errors of all invalid resources.

    `to_apply`: True if the caller will apply the plans. Each plan then also has the present resource
    (`Planned.present`), if it exists, with the ETag for the update. Otherwise `Planned.present` is None. To show a
    plan, the caller does not need the present resource, because the master's plan lists the old and new values.
    """
    plans: list[Planned] = []
    wrong: list[str] = []
    for declared in resources:
        try:
            plans.append(planned(client, declared, to_apply=to_apply))
        except Refusal as refusal:
            if not isinstance(ending := refusal.ending(), Usage):
                raise
            wrong.append(str(ending))
    if wrong:
        raise Usage("\n".join(wrong))
    return plans


def only_there(client: Client, labels: Labels, resources: Sequence[Declared]) -> list[OnlyThere]:
    """Return the resources that have all the labels and that no file declares, in the order in which to delete them."""
    declared = {each.title for each in resources}
    texts = [f"{name}={value}" for name, value in labels.items()]
    crawls = {str(each["name"]): each for each in client.items(path("crawls"), {"label": texts})}
    asked, found = Labelled(labels, frozenset(crawls)), []
    for kind in reversed(KINDS):
        if kind.carries is None:
            continue
        for body in crawls.values() if kind is CRAWL else existing(client, kind, crawls):
            there = OnlyThere(kind, kind.name_of(body), body)
            if kind.carries(body, asked) and there.title not in declared:
                found.append(there)
    return found


def unmet(plans: Sequence[Planned], gone: Sequence[OnlyThere] = ()) -> Iterator[Refusal]:
    """Yield an error for each resource that cannot be applied because of the crawl that it refers to.

    The reasons are:

    - The crawl does not exist and is not declared in `plans`.
    - The crawl is in `gone`, so it will be deleted.
    - The resource does not fit the crawl, such as a seed outside of the crawl's scope.
    """
    crawls = {each.declared.name: each.declared.body for each in plans if each.declared.kind is CRAWL}
    deleted = {each.name for each in gone if each.kind is CRAWL}
    for each in plans:
        kind, body = each.declared.kind, each.declared.body
        named = kind.crawl_of(each.declared.name, body)
        wrong = kind.crawl_error(body, each.plan, crawls.get(named)) if each.action != "none" else None
        if named in deleted:
            wrong = WrongField(
                kind.crawl, f"names the crawl {named!r}, which --prune deletes", "declare the crawl, too"
            )
        if wrong is not None:
            problem = ProblemAnswer(422, "invalid", f"the {kind.name} cannot be used", errors=(wrong,))
            yield Refusal(each.declared.sourced(problem))


# --- for people -------------------------------------------------------------------------------------------------------


def show_changes(output: CtlOutput, changes: Iterable[Mapping[str, Any]]) -> None:
    """Print each changed field with its old and new value. For a list, print only the removed and added entries."""
    for change in changes:
        before, after = change.get("before"), change.get("after")
        if isinstance(before, list) and isinstance(after, list) and any(moved := _removed_and_added(before, after)):
            before, after = (entries or None for entries in moved)
        for sign, value, style in (("-", before, "red"), ("+", after, "green")):
            if value is not None:
                output.say(f"  {sign} {shown(change['path'])}: {_brief(value, before, after)}", style)


def _removed_and_added(before: list[Any], after: list[Any]) -> tuple[list[Any], list[Any]]:
    """Compare two lists. Return the removed entries and the added entries.

    The order of the entries does not matter. For example, `_removed_and_added([1, 2], [3, 2])` returns `([1], [3])`.
    """
    old, new = (Counter(map(json.dumps, entries)) for entries in (before, after))
    return [json.loads(each) for each in (old - new).elements()], [json.loads(each) for each in (new - old).elements()]


def _brief(value: Any, before: Any, after: Any) -> str:
    """Return a field's value on one line. Show only the first SHOWN entries of a list, and the number of the others.

    - `value`: the value to show, either `before` or `after`.
    - `before`, `after`: the old and the new value of the field.

    A list of seeds is shown in one of two ways:

    - If no URL is in both `before` and `after`: only the URL of each seed.
    - Otherwise: all fields of each seed.
    """
    if not isinstance(value, list):
        return shown(value)
    sides = [side if isinstance(side, list) else [] for side in (before, after)]
    urls = [{each.get("url") for each in side if isinstance(each, dict)} for side in sides]
    # If a URL is in both lists, its seeds differ in another field than the URL.
    if all(isinstance(each, dict) and "url" in each for each in value) and not (urls[0] & urls[1]):
        value = [each["url"] for each in value]
    more = f" and {len(value) - SHOWN} more" if len(value) > SHOWN else ""
    return (", ".join(map(shown, value[:SHOWN])) or NONE) + more
