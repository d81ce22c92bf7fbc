"""The order of a crawl's commands and outcomes: each command acts as if it were applied at its place in the stream.

The judge looks behind every transaction of an owner. When a command is accepted, it notes what the command means. When
the command is applied, nothing of that may be as it was. A URL that came to its state later must not be touched.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from shared.domain.frontier.commands import SEED_DELETED, CommandKind
from shared.domain.frontier.states import UrlState

Rows = Callable[[str], list[Any]]
_Url = tuple[int, bytes]
"""A crawl and a fingerprint."""

_RETRIES: Final = (CommandKind.RETRY_FAILED, CommandKind.RETRY_UNANSWERED)
_QUEUEING: Final = (*_RETRIES, CommandKind.REPLAY)
_DELETING: Final = (CommandKind.DELETE_SEEDS, CommandKind.DELETE_SEEDS_BETWEEN)
_JUDGED: Final = (
    "SELECT u.crawl_id, u.fingerprint, u.state, u.reason, coalesce(l.grants, 0) FROM urls u"
    " LEFT JOIN leases l ON l.lease_id = u.lease_id"
    f" WHERE u.state = {UrlState.FAILED:d} OR u.reason = '{SEED_DELETED}' OR l.grants > 0"
)
"""The URLs that commands are judged by: a web has thousands, and few of them are failed, deleted or with a worker."""
_OPEN: Final = f"SELECT crawl_id, fingerprint FROM urls WHERE state IN ({UrlState.QUEUED:d}, {UrlState.WAITING:d})"
_IN_PROGRESS: Final = "SELECT id, crawl_id, kind, sequence FROM commands_in_progress ORDER BY number"
_DELETED: Final = (
    "SELECT crawl_id FROM commands WHERE kind = 'delete'"
    " UNION SELECT crawl_id FROM commands_in_progress WHERE kind = 'delete'"
)


@dataclass(eq=False)
class _Accepted:
    """A command in progress, accepted by the transaction `at`.

    `meant`: failed URLs that a retry has not queued yet. `begun`: URLs that were with a worker since then.
    """

    crawl_id: int
    kind: str
    at: int
    meant: set[_Url] = field(default_factory=set)
    begun: set[_Url] = field(default_factory=set)


@dataclass(eq=False)
class CommandOrder:
    """What owners' transactions did to URLs, compared with the commands in progress.

    `_failed`: since which transaction a URL has failed.
    """

    _at: int = 0
    _failed: dict[_Url, int] = field(default_factory=dict)
    _deleted_seeds: set[_Url] = field(default_factory=set)
    _in_progress: dict[str, _Accepted] = field(default_factory=dict)

    def written(self, rows: Rows, blame: Callable[[str], None]) -> None:
        """Judge a transaction of an owner, which is in."""
        self._at += 1
        judged = [((row[0], bytes(row[1])), row[2], row[3], row[4]) for row in rows(_JUDGED)]
        failed = {url: reason or "" for url, state, reason, _ in judged if state == UrlState.FAILED}
        deleted = {url for url, _, reason, _ in judged if reason == SEED_DELETED}
        begun = {url for url, _, _, grants in judged if grants}
        self._untouched(rows, failed, deleted, blame)
        for accepted in self._in_progress.values():
            accepted.meant &= failed.keys()
            accepted.begun |= begun
        self._failed = {url: self._failed.get(url, self._at) for url in failed}
        self._deleted_seeds = deleted
        self._commands(rows, begun, failed, blame)

    def _untouched(self, rows: Rows, failed: dict[_Url, str], deleted: set[_Url], blame: Callable[[str], None]) -> None:
        """Blame a change of a URL that came to its state behind every command that could change it."""
        if changed := self._failed.keys() - failed.keys():
            for url in changed & {(row[0], bytes(row[1])) for row in rows(_OPEN)}:
                if not self._may(url, _QUEUEING, lambda c, n=self._failed[url]: c.at > n):  # type: ignore[misc]  # bound now
                    blame(f"{url} failed behind every retry in progress, and was queued by one")
        for url in deleted - self._deleted_seeds:
            if not self._may(url, _DELETING, lambda c, url=url: url not in c.begun):  # type: ignore[misc]  # bound now
                blame(f"{url} was with a worker behind its deletion, and was deleted as a seed")

    def _may(self, url: _Url, kinds: tuple[CommandKind, ...], true: Callable[[_Accepted], bool]) -> bool:
        commands = self._in_progress.values()
        return any(each.crawl_id == url[0] and each.kind in kinds and true(each) for each in commands)

    def _commands(
        self,
        rows: Rows,
        begun: set[_Url],
        failed: dict[_Url, str],
        blame: Callable[[str], None],
    ) -> None:
        """Note the commands that are accepted, and judge those that are applied."""
        now = {row[0]: row for row in rows(_IN_PROGRESS)}
        for name in self._in_progress.keys() - now.keys():
            applied = self._in_progress.pop(name)
            deleted = {row[0] for row in rows(_DELETED)}
            if applied.meant and applied.crawl_id not in deleted:
                blame(f"{applied.kind} {name} is applied, and {sorted(applied.meant)} are failed since before it")
        position = rows("SELECT outcome_seq FROM partitions")[0][0]
        for name, _, kind, sequence in now.values():
            if sequence > position:
                blame(f"{kind} {name} is at {sequence}, beyond the outcomes up to {position} that were applied")
        for name in now.keys() - self._in_progress.keys():
            _, crawl_id, kind, sequence = now[name]
            if sequence != position:
                blame(f"{kind} {name} at {sequence} was accepted when outcomes up to {position} were applied")
            answered = kind == CommandKind.RETRY_UNANSWERED
            meant = {
                url
                for url, reason in failed.items()
                if kind in _RETRIES and url[0] == crawl_id and not (answered and reason.startswith("http_"))
            }
            self._in_progress[name] = _Accepted(crawl_id, kind, self._at, meant, set(begun))
