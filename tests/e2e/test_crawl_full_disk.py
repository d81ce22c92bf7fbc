"""A crawl on one machine whose disk is filled under it: it ends in good order, and goes on when there is room."""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.faults.disks import filled, small
from tests.support.processes.crawl_process import Running
from tests.support.web.synthetic_site import SyntheticSite
from tests.support.web.web_server import Web

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

PAGES = 30


def test_crawl_on_full_disk_says_what_to_do_and_resumes_with_space(web: Callable[..., Web], tmp_path: Path) -> None:
    out = tmp_path / "a.crawl"
    out.mkdir()
    with ExitStack() as stack:
        small(stack, out, 64)
        served = web(SyntheticSite(pages=PAGES))
        served.answer(5)
        with Running(out, f"{served.origins[0]}/", "--allow-net", "127.0.0.0/8", "--delay", "0") as crawl:
            served.wait_served(5)
            with filled(out):
                summary = crawl.finish(code=4)
            assert summary["end"] == "failed"
            assert summary["message"] == f"the disk of {out} is full; make room there, and the crawl goes on."
            said = crawl.last_words()
            assert "orb: the disk is full: stopping" in said
            assert "orb: to go on: " in said
            assert "Traceback" not in said
            served.answer(None)
            crawl.start()
            assert crawl.finish()["pages"] == PAGES
