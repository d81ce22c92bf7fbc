"""Completes the archive of a crawl: finishes incomplete WARC files and indexes the accepted pages.

It also checks whether the crawl is finished.
"""

from pathlib import Path

import structlog

from cli.local.crawl_folder import CrawlFolder
from cli.terminal.progress import say
from shared.adapters.objects.cdxj import write_index
from shared.adapters.objects.repair import repair_torn
from shared.domain.crawl.spec import CrawlSpec, encode_spec
from shared.domain.errors import Transient
from shared.domain.frontier.states import CrawlState

log = structlog.get_logger("orb.crawl")


def is_finished(folder: CrawlFolder, spec: CrawlSpec, before_ms: int | None = None) -> bool:
    """Return True if the crawl in the folder is finished with the spec `spec`, and if this run finished the crawl.

    `before_ms`: the finish time (Unix ms) that the crawl already had when this run began. If the finish time is still
    the same, an earlier run finished the crawl, so the result is False. None: no earlier run finished the crawl.

    Also return False while the database is busy.
    """
    if not folder.database.is_file():
        return False
    from shared.adapters.sql.catalog.crawl_reader import (
        CrawlReader,  # takes longer to load than the rest of the command
    )

    reader = CrawlReader(folder.database)
    try:
        row = reader.crawl()
    except Transient:
        return False  # the database is busy: the caller retries
    finally:
        reader.close()
    if row is None or row.state is not CrawlState.FINISHED or row.finished_at_ms == before_ms:
        return False
    return row.spec == encode_spec(spec).decode()


def repair(archive: Path) -> None:
    """Complete the WARC files in `archive` that workers did not finish, because they were killed.

    Print a message for each file that is damaged.
    """
    for segment in repair_torn(archive):
        log.info("segment.repaired", segment=segment.segment, kept=segment.kept, cut=segment.cut)
        if segment.damaged:
            say(f"segment {segment.segment} is damaged at {segment.damaged}; the records there are lost")


def complete_archive(folder: CrawlFolder) -> None:
    """Complete the unfinished WARC files of a crawl, and write the index of its accepted pages (index.cdxj)."""
    repair(folder.archive)
    if not folder.database.is_file():
        return
    from shared.adapters.sql.catalog.crawl_reader import CrawlReader

    reader = CrawlReader(folder.database)
    try:
        row = reader.crawl()
        if row is not None:
            write_index(reader.index_rows(row.crawl_id), folder.index)
    finally:
        reader.close()
