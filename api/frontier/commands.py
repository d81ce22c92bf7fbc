"""The commands in progress of one partition, and which of them is next. Pure.

Commands of one crawl run in the order in which they were accepted. Commands of several crawls take turns. A row that is
written while a command is in progress carries the command's number as its mark. The command skips such rows.
"""

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from shared.domain.frontier.commands import CommandKind
from shared.domain.frontier.store_model import CommandRun
from shared.domain.ids import CrawlId


class Commands:
    """The commands in progress of a partition, as of the last committed transaction, and which of them may run now."""

    def __init__(self, runs: Iterable[CommandRun] = ()) -> None:
        self._runs = {run.id: run for run in runs}

    def __repr__(self) -> str:
        return f"<Commands {len(self._runs)}>"

    def __len__(self) -> int:
        return len(self._runs)

    def add(self, run: CommandRun) -> None:
        """Add an accepted command.

        A DELETE replaces all other commands of its crawl. A RESCOPE or REDISCOVER replaces the crawl's earlier command
        of the same kind.
        """
        if run.kind in (CommandKind.DELETE, CommandKind.RESCOPE, CommandKind.REDISCOVER):
            every, kept = self._runs.values(), run.kind != CommandKind.DELETE
            self._runs = {
                each.id: each for each in every if each.crawl_id != run.crawl_id or (kept and each.kind != run.kind)
            }
        self._runs[run.id] = run

    def advance(self, run: CommandRun, rest: int | None) -> None:
        """Record that the next chunk of the command starts at `rest`. If that is None, remove the applied command."""
        if rest is None:
            del self._runs[run.id]
        else:
            self._runs[run.id] = replace(run, after=rest)

    def place_before_all_reports(self) -> None:
        """Give every command the sequence 0, before all reports of the stream, because that stream is a new one."""
        self._runs = {run.id: replace(run, sequence=0) for run in self._runs.values()}

    def current(self, run: CommandRun) -> bool:
        """Return True if `run` is the latest state of its command, False if the command has advanced or ended since."""
        return self._runs.get(run.id) is run

    def heads(self) -> list[CommandRun]:
        """Return the commands that may run now: the oldest of each crawl."""
        first: dict[CrawlId, CommandRun] = {}
        for run in self._runs.values():
            first.setdefault(run.crawl_id, run)
        return list(first.values())

    def marks(self, before: int | None = None) -> Mapping[CrawlId, int]:
        """Return the marks for rows written now: for each crawl, the number of its newest command in progress.

        `before`: consider only commands whose messages have a smaller stream sequence.
        """
        return {run.crawl_id: run.number for run in self._runs.values() if before is None or run.sequence < before}

    def sequences(self) -> list[int]:
        """Return the stream sequences of the messages of the commands in progress, ascending."""
        return sorted(run.sequence for run in self._runs.values())

    def rescopes(self, crawl_id: CrawlId) -> bool:
        """Return True while a command in progress applies a changed scope to the URLs of this crawl."""
        return any(run.kind == CommandKind.RESCOPE and run.crawl_id == crawl_id for run in self._runs.values())

    def deletes(self, crawl_id: CrawlId) -> bool:
        """Return True while a command in progress removes the rows of this crawl."""
        return any(run.kind == CommandKind.DELETE and run.crawl_id == crawl_id for run in self._runs.values())
