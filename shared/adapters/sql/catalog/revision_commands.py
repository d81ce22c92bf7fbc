"""Reads the progress of commands that the leader sends for a new revision of a spec.

No client requests these commands, so the database stores no request for them.
"""

import re
from collections.abc import Callable
from typing import Final

from sqlalchemy import Connection, func, select

from shared.adapters.sql.engine.schema import cluster, commands, crawl_revisions
from shared.adapters.sql.frontier.rediscover import widened_revision
from shared.adapters.sql.frontier.rescope import scope_revision
from shared.domain.errors import Unusable
from shared.domain.frontier.commands import CommandKind
from shared.domain.ids import CrawlId, Revision
from shared.domain.reads.declared import CommandProgress

_ID: Final = re.compile(r"([a-z]+)-([1-9][0-9]{0,17})-([1-9][0-9]{0,8})")

_SENT_FOR: Final[dict[str, Callable[[Connection, CrawlId], Revision | None]]] = {
    CommandKind.RESCOPE: scope_revision,
    CommandKind.REDISCOVER: widened_revision,
}
"""For each kind of command: a function that finds the latest of a crawl's revisions that require this command.

The leader sends the command for this revision only, not for earlier ones. The function returns None if no revision
requires the command."""


def revision_command(connection: Connection, command_id: str) -> CommandProgress | None:
    """Return the progress of a command that the leader sends for a revision of a spec.

    `command_id` names the command's kind, crawl and revision, such as `rescope-7-3`. Return None in these cases:

    - `command_id` does not have this form, or names a kind of command that the leader never sends for a revision.
    - The revision is not stored.
    - No partition has applied the command, and the leader will not send it.
    """
    match = _ID.fullmatch(command_id)
    if match is None or match[1] not in {*_SENT_FOR, CommandKind.RECRAWL}:
        return None
    kind, crawl_id, revision = match[1], CrawlId(int(match[2])), Revision(int(match[3]))
    made = select(crawl_revisions.c.created_at_ms, select(cluster.c.partitions).scalar_subquery().label("partitions"))
    row = connection.execute(
        made.where(crawl_revisions.c.crawl_id == crawl_id, crawl_revisions.c.revision == revision)
    ).first()
    applied = connection.execute(
        select(func.count()).select_from(commands).where(commands.c.id == command_id)
    ).scalar_one()
    if row is None or not (applied or _is_latest(connection, kind, crawl_id, revision)):
        return None
    return CommandProgress(command_id, kind, crawl_id, applied, row.partitions, row.created_at_ms)


def _is_latest(connection: Connection, kind: str, crawl_id: CrawlId, revision: Revision) -> bool:
    """Return True if `revision` is the latest revision of the crawl that requires a command of this kind.

    Example: revisions 3 and 5 changed the scope. For a RESCOPE command, only revision 5 gives True. The result does not
    depend on whether the command was sent. Return False for revision 1, and for a kind that is not in `_SENT_FOR`.
    """
    sent_for = _SENT_FOR.get(kind)
    try:
        return revision > 1 and sent_for is not None and sent_for(connection, crawl_id) == revision
    except Unusable:  # A spec that this version cannot read: the crawl waits for a new one.
        return False
