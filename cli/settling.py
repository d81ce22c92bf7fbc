"""What a run leaves in order: finished segments, the index of what was accepted; and whether there is more to do."""

from pathlib import Path

import structlog

from cli.folder import CrawlFolder
from cli.watch import say
from shared.adapters.objects.cdxj import write_index
from shared.adapters.objects.repair import repair_torn
from shared.domain.crawl import CrawlSpec, encode_spec
from shared.domain.errors import Transient
from shared.domain.frontier import CrawlState

log = structlog.get_logger("orb.crawl")


def is_finished(folder: CrawlFolder, spec: CrawlSpec, before_ms: int | None = None) -> bool:
    """Return True if the database says that the crawl, declared by `spec`, is finished, and not since `before_ms`."""
    if not folder.database.is_file():
        return False
    from shared.adapters.sql.reading import CrawlReader  # takes longer to load than all else of the command

    reader = CrawlReader(folder.database)
    try:
        row = reader.crawl()
    except Transient:
        return False  # the database is busy: the caller asks again
    finally:
        reader.close()
    if row is None or row.state is not CrawlState.FINISHED or row.finished_at_ms == before_ms:
        return False
    return row.spec == encode_spec(spec).decode()


def repair(archive: Path) -> None:
    """Finish what dead workers left open in the archive."""
    for segment in repair_torn(archive):
        log.info("archive.repaired", segment=segment.segment, kept=segment.kept, cut=segment.cut)
        if segment.damaged:
            say(f"segment {segment.segment} is damaged at {segment.damaged}; what lies there is lost")


def settle(folder: CrawlFolder) -> None:
    """Leave the archive as other tools expect it: finished segments, and the index of what was accepted."""
    repair(folder.archive)
    if not folder.database.is_file():
        return
    from shared.adapters.sql.reading import CrawlReader

    reader = CrawlReader(folder.database)
    try:
        row = reader.crawl()
        if row is not None:
            write_index(reader.index_rows(row.crawl_id), folder.index)
    finally:
        reader.close()
