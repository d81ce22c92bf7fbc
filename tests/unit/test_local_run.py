"""A crawl of which nothing is heard: whoever waits in front of it is told where to look."""

import asyncio
import itertools
from pathlib import Path

import pytest

from cli.local import local_run as local
from cli.local.crawl_folder import CrawlFolder
from cli.local.local_run import LocalRun
from shared.domain.crawl.spec_parse import parse_spec
from tests.support.progress_recorder import NoteRecorder


@pytest.mark.parametrize("heard", [False, True])
def test_a_crawl_that_does_not_begin_is_told_of_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, heard: bool
) -> None:
    monkeypatch.setattr(local, "_LOOK_S", 0.001)
    folder, watch = CrawlFolder(tmp_path), NoteRecorder()
    spec = parse_spec({"seeds": ["http://a.test/"]})
    run = LocalRun(folder, spec, workers=1, lock=0, watch=watch, finished=lambda: False)
    run._answered = heard

    looks = itertools.count(1)
    enough = asyncio.Event()

    def free_bytes(_: CrawlFolder) -> int:
        if next(looks) > 2 * local._SILENT_LOOKS:
            enough.set()
        return 1 << 40

    monkeypatch.setattr(CrawlFolder, "free_bytes", free_bytes)

    async def story() -> None:
        looking = asyncio.create_task(run._look_after())
        await enough.wait()
        looking.cancel()
        await asyncio.wait([looking])

    asyncio.run(asyncio.wait_for(story(), 60))
    told = [f"the crawl has not begun yet; {tmp_path / 'logs' / 'master.log'} has the reason"]
    assert watch.notes == ([] if heard else told)
