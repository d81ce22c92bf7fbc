"""Verbs apply and diff of `orb ctl`: make a cluster match files, and show how it differs from them."""

import argparse
import sys
import uuid
from collections.abc import Sequence
from typing import Any, Final

from cli.ctl.client import Client
from cli.ctl.estate.declared import Declared, read
from cli.ctl.estate.kinds import API_KEY, KINDS, SEED_SET, Labels
from cli.ctl.estate.plans import (
    SHOWN,
    OnlyThere,
    Planned,
    Sourced,
    all_planned,
    only_there,
    planned,
    show_changes,
    unmet,
)
from cli.ctl.estate.prune import ask_to_delete, delete, show_deletions
from cli.ctl.problems import Refusal
from cli.ctl.verb_context import VerbContext, Verbs
from cli.local.spec_flags import labels_given
from cli.terminal.exits import Exit, Failed, Usage

_ATTEMPTS: Final = 5


def declare(verbs: Verbs) -> None:
    """Add the verbs apply and diff to `orb ctl`."""
    apply = verbs.add("apply", "create and change resources to match the files", _apply)
    files_option(apply, required=True)
    apply.add_argument("--dry-run", action="store_true", help="only show what would change")
    apply.add_argument(
        "--prune", action="store_true", help="also delete what has the labels of -l and is not in the files"
    )
    _labels(apply, "with --prune: the labels of what may be deleted; repeatable, all must match")
    apply.add_argument("--yes", action="store_true", help="delete without a question")
    diff = verbs.add("diff", "show how the cluster differs from the files: exit code 0 if it does not, else 1", _diff)
    files_option(diff, required=True)
    _labels(diff, "also show what has these labels and is not in the files; repeatable, all must match")


def files_option(parser: argparse.ArgumentParser, *, required: bool) -> None:
    """Add the option `-f`/`--file`, which may be repeated, to the parser of a verb."""
    parser.add_argument(
        "-f", "--file", action="append", metavar="FILE", required=required, default=None if required else [],
        help="a file, a folder of them, or - for standard input; YAML or JSON, any number of documents; repeatable",
    )  # fmt: skip


def _labels(parser: argparse.ArgumentParser, text: str) -> None:
    parser.add_argument("-l", "--label", action="append", metavar="NAME=VALUE", default=[], help=text)


# --- apply ------------------------------------------------------------------------------------------------------------


def _apply(desk: VerbContext, arguments: argparse.Namespace) -> int:
    """Run `orb ctl apply` and return the exit code.

    Before the first change, all files are validated, and the user confirms the deletions.
    """
    labels = labels_given(arguments.label, "-l")
    if arguments.prune and not labels:
        raise Usage("--prune needs -l name=value: it deletes only what has the label.")
    if labels and not arguments.prune:
        raise Usage("-l is for --prune: without it, apply deletes nothing.")
    resources = read(arguments.file, sys.stdin)
    plans = all_planned(desk.client, resources, to_apply=not arguments.dry_run)
    gone = only_there(desk.client, labels, resources) if arguments.prune else []
    refused = list(unmet(plans, gone))
    if arguments.prune:
        without = ", ".join(kind.name for kind in KINDS if kind.carries is None)
        desk.note(f"--prune leaves these kinds alone, since they have no labels: {without}")
    if arguments.dry_run:
        _show(desk, plans, gone)
        for each in refused:
            desk.note(f"this would be refused: {each}")
        return Exit.OK
    if refused:
        raise Usage("\n".join(map(str, refused)))
    if any(each.declared.has_secret and each.action == "create" for each in plans):
        desk.check_shows_secrets()
    ask_to_delete(desk, gone, yes=arguments.yes)
    _carry_out(desk, plans, gone, labels)
    return Exit.OK


def _carry_out(desk: VerbContext, plans: Sequence[Planned], gone: Sequence[OnlyThere], labels: Labels) -> None:
    """Make the planned changes in the order of `plans`, then delete the resources in `gone`. Print each result.

    Keep a resource of `gone` if it no longer has all the `labels`. If a change fails, print to stderr which changes
    were not made, and raise the error of the failed change.
    """
    left = [each.declared.title for each in plans] + [f"{each.title} (delete)" for each in gone]
    total = len(left)
    try:
        for plan in plans:
            done, body = applied(desk.client, plan)
            left.pop(0)
            show_done(desk, plan.declared, done, body)
        for each in gone:
            done = delete(desk.client, each, labels)
            left.pop(0)
            desk.output.done(each.title, done)
    except BaseException:
        more = f" and {len(left) - SHOWN} more" if len(left) > SHOWN else ""
        names = ", ".join(left[:SHOWN]) + more
        desk.note(f"{total - len(left)} of {total} are done; not done: {names}; repeat the command to continue")
        raise


def show_done(desk: VerbContext, declared: Declared, done: str, body: Any) -> None:
    """Print what was done to a resource (`done`, such as `created`).

    For a new API key, also print its secret. For a changed seed set, also print the command that shows when owners have
    applied the change. `body` is the resource in the API's answer, None if there is no answer.
    """
    desk.output.done(declared.title, done, body)
    if body is None or done == "unchanged":
        return
    if declared.kind is API_KEY:
        desk.issued(body)
    if declared.kind is SEED_SET:
        desk.asked(body)


def applied(client: Client, plan: Planned) -> tuple[str, Any]:
    """Make the planned change. Return what was done (`created`, `configured` or `unchanged`), and the resource's body.

    Raise Failed if another client changed a declarable field of the resource after it was planned. Raise Failed too if
    a key was created but the answer with its secret was lost.
    """
    seen, first = plan, "created" if plan.action == "create" else "configured"
    if plan.action == "none":
        return "unchanged", None if plan.present is None else plan.present.body
    for _ in range(_ATTEMPTS):
        try:
            with Sourced(seen.declared):
                return first, _sent(client, seen)
        except Refusal as refusal:
            if refusal.problem.status not in (404, 412) and refusal.problem.kind != "exists":
                raise
            seen = planned(client, plan.declared, to_apply=True)
            if seen.action == "none" and refusal.unsure and plan.action == "create" and plan.declared.has_secret:
                raise Failed(_unseen(plan.declared)) from refusal
            if seen.action == "none":  # an earlier attempt was applied, or another client made the same change
                return (first if refusal.unsure else "unchanged"), None if seen.present is None else seen.present.body
            if not seen.same_as(plan):
                raise Failed(_overtaken(seen)) from refusal
            if refusal.problem.status == 404:
                raise
    raise Failed(f"{plan.declared.title} is changed by other clients all the time: repeat the command later.")


def _overtaken(now: Planned) -> str:
    what, source = "deleted" if now.present is None else "changed", now.declared.source
    return (
        f"{source}: {now.declared.title} was {what} by another client after it was compared, and is left as it is; "
        "`orb ctl diff` shows what differs now."
    )


def _unseen(key: Declared) -> str:
    return (
        f"{key.source}: {key.title} was created, and the answer with its secret was lost: run `orb ctl keys revoke "
        f"{key.name}` and repeat the command."
    )


def _sent(client: Client, plan: Planned) -> Any:
    """Create the resource of the plan, or replace the resource if it still has the ETag in the plan.

    Return the answer's body. Raise Refusal (412) if another client changed the resource.
    """
    if plan.present is None:
        return create(client, plan.declared)
    headers = {} if plan.present.etag is None else {"If-Match": plan.present.etag}
    return client.ask("PUT", plan.present.at, body=plan.declared.body, headers=headers).body


def create(client: Client, declared: Declared) -> Any:
    """Create a resource, and return the answer's body. Raise Refusal if it exists.

    Retries never create the resource twice. If the answer to a PUT is lost, this call may raise Refusal although it has
    created the resource. `unsure` of the Refusal is then True.
    """
    kind = declared.kind
    if kind.posted:
        body, headers = {kind.key: declared.name, **declared.body}, {"Idempotency-Key": uuid.uuid4().hex}
        return client.ask("POST", kind.at, body=body, headers=headers).body
    return client.ask("PUT", kind.path(declared.name), body=declared.body, headers={"If-None-Match": "*"}).body


def created_before(client: Client, declared: Declared) -> Any:
    """Find out if a creation succeeded whose answer was lost. Return the body of the resource, None if it failed.

    The creation succeeded if the cluster has the resource with the declared values. If the resource is then an API key
    with a secret, raise Failed, because only the lost answer had the secret.
    """
    seen = planned(client, declared, to_apply=True)
    if seen.present is None or seen.action != "none":
        return None
    if declared.has_secret:
        raise Failed(_unseen(declared))
    return seen.present.body


# --- what would change ------------------------------------------------------------------------------------------------


def _show(desk: VerbContext, plans: Sequence[Planned], gone: Sequence[OnlyThere]) -> None:
    if not desk.output.for_people:
        desk.output.document({"items": [*map(_item, plans), *map(_gone_item, gone)]})
        return
    for each in plans:
        title, plan = each.declared.title, each.plan
        match each.action:
            case "none":
                desk.output.say(f"{title} would not change")
            case "create":
                state = f", {plan['state']}" if "state" in plan else ""
                desk.output.say(f"{title} would be created{state}", "green")
            case _ if "revision" in plan:
                desk.output.say(f"{title} would become revision {plan['revision']}, {plan['state']}", "yellow")
            case _:
                desk.output.say(f"{title} would change", "yellow")
        show_changes(desk.output, plan["changes"])
    show_deletions(desk.output.say, gone)


def _diff(desk: VerbContext, arguments: argparse.Namespace) -> int:
    """Run `orb ctl diff`. Return exit code 1 if there are differences, else 0.

    An error that usually ends with exit code 1 (Failed) becomes Usage, so that 1 always means a difference.
    """
    labels = labels_given(arguments.label, "-l")
    try:
        resources = read(arguments.file, sys.stdin)
        plans = [each for each in all_planned(desk.client, resources, to_apply=False) if each.action != "none"]
        gone = only_there(desk.client, labels, resources) if labels else []
    except Refusal as refusal:
        ending = refusal.ending()
        raise (Usage(str(ending)) if isinstance(ending, Failed) else ending) from refusal
    if not desk.output.for_people:
        desk.output.document({"items": [*map(_item, plans), *map(_gone_item, gone)]})
        return Exit.DIFFERENT if plans or gone else Exit.OK
    for each in plans:
        if each.action == "create":
            desk.output.say(f"{each.declared.title} is only in the files", "green")
        else:
            desk.output.say(f"{each.declared.title} differs", "yellow")
            show_changes(desk.output, each.plan["changes"])
    for other in gone:
        desk.output.say(f"{other.title} is only in the cluster", "red")
    return Exit.DIFFERENT if plans or gone else Exit.OK


def _item(each: Planned) -> dict[str, Any]:
    return {"kind": each.declared.kind.name, "name": each.declared.name, **each.plan}


def _gone_item(each: OnlyThere) -> dict[str, Any]:
    return {"kind": each.kind.name, "name": each.name, "action": "delete", "changes": []}
