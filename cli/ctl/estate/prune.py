"""Deletes resources that have the given labels and that no file declares: shows them, asks, and deletes them."""

import sys
from collections.abc import Callable, Sequence
from typing import Final

from cli.ctl.client import Client
from cli.ctl.estate.kinds import CRAWL, Labelled, Labels
from cli.ctl.estate.plans import OnlyThere, present
from cli.ctl.problems import Refusal
from cli.ctl.verb_context import VerbContext
from cli.terminal.exits import Failed, Usage

_ATTEMPTS: Final = 5


def show_deletions(say: Callable[[str, str], None], gone: Sequence[OnlyThere]) -> None:
    """Print each resource that would be deleted, and what is lost with it. `say` prints a line in a style."""
    for each in gone:
        say(f"{each.title} would be deleted: {each.kind.loses(each.body)}", "red")


def ask_to_delete(desk: VerbContext, gone: Sequence[OnlyThere], *, yes: bool) -> None:
    """Show what will be deleted, and ask for confirmation. With `yes` or an empty `gone`, do not ask.

    Raise Failed if the answer is no, Usage if there is no terminal.
    """
    if not gone:
        return
    show_deletions(lambda line, style: desk.note(line), gone)
    if yes:
        return
    if not sys.stdin.isatty():
        raise Usage("--prune asks before it deletes, and there is no terminal: set --yes. Nothing was changed.")
    print(f"orb: apply the files, and delete these {len(gone)}? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise Failed("nothing was changed.")


def delete(client: Client, each: OnlyThere, labels: Labels) -> str:
    """Delete a resource if it still has the labels.

    Return what was done: `deleted`, `not found` or why it was kept. Raise Failed if other clients change the resource
    again and again.
    """
    unsure = False
    for _ in range(_ATTEMPTS):
        there = present(client, each.kind, each.name)
        if there is None:
            return "deleted" if unsure else "not found"
        crawl = each.kind.crawl_of(each.name, there.body)
        asked = Labelled(labels, _labelled_crawl(client, crawl, labels) if crawl else frozenset())
        if each.kind.carries is None or not each.kind.carries(there.body, asked):
            return "kept: it does not carry the label any more"
        try:
            client.ask("DELETE", there.at, headers={} if there.etag is None else {"If-Match": there.etag})
            return "deleted"
        except Refusal as refusal:
            if refusal.problem.status not in (404, 412):
                raise
            unsure = unsure or refusal.unsure
    raise Failed(f"{each.title} is changed by other clients all the time: repeat the command later.")


def _labelled_crawl(client: Client, name: str, labels: Labels) -> frozenset[str]:
    """Return a set with the crawl's name if the crawl has all the labels, else an empty set."""
    there = present(client, CRAWL, name)
    carries = CRAWL.carries is not None and there is not None and CRAWL.carries(there.body, Labelled(labels))
    return frozenset((name,)) if carries else frozenset()
