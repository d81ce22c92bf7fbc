"""Hostile answers, all of them in one crawl: each ends as a recorded outcome, in bounded memory, beside good pages."""

import sqlite3
import threading
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import psutil
import pytest

from tests.support.archive import stored_crawl
from tests.support.database.url_rows import URLS
from tests.support.processes.crawl_process import Running, write_spec
from tests.support.processes.orb_command import export
from tests.support.web.hostile_site import GOOD, HOSTILE, MANY_LINKS, MIB, HostileSite
from tests.support.web.hostile_sitemaps import CUT as CUT_SITEMAPS
from tests.support.web.hostile_sitemaps import MARK, READABLE, REFUSED, HostileSitemaps
from tests.support.web.synthetic_site import SyntheticSite
from tests.support.web.web_server import Web
from workers.discover.listing import MAX_ENTRIES, MAX_LISTING_BYTES
from workers.discover.xml_listing import MAX_XML_DEPTH

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

BODY: Final = 4 * MIB
DECODED: Final = 12 * MIB
SPEC: Final[Mapping[str, Any]] = {
    "politeness": {"delay_s": 0},
    "retry": {"attempts": 2, "base_s": 0.1},
    "fetch": {
        "first_byte_timeout_s": 2,
        "total_timeout_s": 4,
        "max_body_bytes": BODY,
        "max_decoded_bytes": DECODED,
    },
}


class Peaks(threading.Thread):
    """Samples the largest resident set that any worker of a run has had (VmHWM, which only grows)."""

    def __init__(self, run: Running) -> None:
        super().__init__(name="peaks", daemon=True)
        self.bytes = 0
        self._run = run
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.wait(0.05):
            for worker in self._run.of("worker"):
                self.bytes = max(self.bytes, _peak(worker))

    def stop(self) -> int:
        self._over.set()
        self.join()
        return self.bytes


def _peak(process: psutil.Process) -> int:
    try:
        status = Path(f"/proc/{process.pid}/status").read_text()
    except OSError:
        return 0
    lines = [line.split() for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(lines[0][1]) * 1024 if lines else 0


def crawled(served: Web, folder: Path, **sections: Any) -> tuple[Running, dict[str, Any], int]:
    """A finished crawl of the only site served: its summary, and the peak memory of its worker."""
    folder.mkdir()
    spec = write_spec(folder / "spec.json", {"seeds": [f"{served.origins[0]}/"], **SPEC, **sections})
    with Running(folder / "crawl", "--spec", spec, "--workers", "1") as run:
        peaks = Peaks(run)
        peaks.start()
        summary = run.finish(timeout_s=150)
        return run, summary, peaks.stop()


CUT: Final = (
    # What never ends is cut at a limit, and what came until then is kept.
    "/endless",
    "/gzip-bomb",
    "/slow-drip",
    # What breaks off after a whole head is kept as far as it came.
    "/broken-chunks",
    "/cut-chunks",
    "/huge-chunk",
    "/length-too-long",
    "/reset",
)
REDIRECT: Final = "done 302"
ENDS: Final[Mapping[str, str]] = {
    **dict.fromkeys(CUT, "done 200"),
    # No head, no page.
    "/endless-head": "failed headers_too_large",
    "/big-header": "failed headers_too_large",
    "/slow-head": "failed total_timeout",
    "/silent": "failed first_byte_timeout",
    "/nothing": "failed reset",
    "/two-lengths": "failed protocol",
    "/negative-length": "failed protocol",
    "/not-http": "failed protocol",
    "/status-999": "failed http_999",
    # Whole answers whose content is wrong are pages.
    **dict.fromkeys(
        (
            "/broken-gzip",
            "/length-too-short",
            "/binary",
            "/charset-unknown",
            "/charset-wrong",
            "/deep-nesting",
            "/many-links",
            "/bad-links",
            "/no-type",
        ),
        "done 200",
    ),
    **dict.fromkeys(("/redirect-self", "/redirect-a", "/redirect-b", "/redirect-nowhere", "/redirect-junk"), REDIRECT),
}
"""How each hostile path ends: state, and status or reason."""


def details_in(database: Path) -> dict[str, str | None]:
    """What is said of the last fetch of each URL."""
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        return dict(
            connection.execute(f"SELECT url, detail FROM {URLS} u JOIN fetches USING (crawl_id, host_id, fingerprint)")
        )


def end_of(row: Mapping[str, Any]) -> str:
    """A row of the export in the words of `ENDS`."""
    return f"{row['state']} {row['status'] if row['state'] == 'done' else row['reason']}"


def test_hostile_responses_become_outcomes_in_bounded_memory(web: Callable[..., Web], tmp_path: Path) -> None:
    assert set(ENDS) >= set(HOSTILE), "a hostile path is not judged"
    _, _, ordinary = crawled(web(SyntheticSite(pages=300)), tmp_path / "ordinary")
    served = web(HostileSite())
    origin = served.origins[0]
    run, summary, peak = crawled(served, tmp_path / "hostile")
    print(f"peak memory of the worker: {peak >> 20} MiB, of an ordinary crawl {ordinary >> 20} MiB")
    assert (summary["finished_reason"], summary["dead_letters"]) == ("complete", 0)
    assert summary["identities"] == {"urls": 0, "links": 0}

    known = {row["url"].removeprefix(origin): row for row in export("urls", run.out)}
    assert {path: end_of(known[path]) for path in ENDS} == ENDS
    assert {path: end_of(known[path]) for path in ("/", *GOOD)} == dict.fromkeys(("/", *GOOD), "done 200")
    assert {row["state"] for row in known.values()} <= {"done", "failed", "excluded"}
    details = details_in(run.out / "crawl.db")
    said = {path: details[origin + path] or "" for path in CUT}
    assert {path for path in CUT if "cut" not in said[path]} <= {"/gzip-bomb"}, "what was cut says so"
    assert "max_decoded_bytes" in said["/gzip-bomb"] or "cut" in said["/gzip-bomb"]
    assert details[f"{origin}/"] is None
    leaves = [row for path, row in known.items() if path.startswith("/leaf/")]
    assert 1_000 < len(leaves) < MANY_LINKS, "links of one page are taken up to the limit of the spec"
    assert {end_of(row) for row in leaves} == {"excluded robots"}

    # Within the limits: what is stored, and what was held to store it.
    stored_crawl.check_with_warcio(stored_crawl.segments(run.out))
    pages = list(export("pages", run.out))
    assert max(row["size"] for row in pages) <= BODY
    for row in pages:
        record = stored_crawl.record_at(run.out, row["segment"], row["offset"], row["length"])
        assert (record.url, record.status) == (row["url"], row["status"])
    assert peak - ordinary < 8 * (BODY + DECODED), f"{peak >> 20} MiB against {ordinary >> 20} MiB"


def test_hostile_sitemaps_become_outcomes_within_the_limits(web: Callable[..., Web], tmp_path: Path) -> None:
    served = web(HostileSitemaps())
    origin = served.origins[0]
    run, summary, peak = crawled(served, tmp_path / "sitemaps", discover={"sitemaps": "robots"}, fetch={})
    print(f"peak memory of the worker: {peak >> 20} MiB")
    assert (summary["finished_reason"], summary["dead_letters"]) == ("complete", 0)
    assert summary["identities"] == {"urls": 0, "links": 0}
    ends = {row["url"].removeprefix(origin): end_of(row) for row in export("urls", run.out)}
    names = ("hosts", "include", "million", "lines", "after", *(f"lastmod{n}" for n in range(7)))
    files = (*READABLE, *CUT_SITEMAPS, *REFUSED)
    assert ends == dict.fromkeys(("/", *files, *(MARK + name for name in names)), "done 200")
    assert summary["discover"] == {
        "sitemaps": len(READABLE), "partly_read": len(CUT_SITEMAPS), "unreadable": len(REFUSED), "listed": len(names),
    }  # fmt: skip
    details = details_in(run.out / "crawl.db")
    said = {path: details[origin + path] or "" for path in files}
    assert {path for path in READABLE if said[path]} == set()
    limits = {
        "/million.rss.gz": f"{MAX_ENTRIES}", "/lines.txt.gz": f"{MAX_ENTRIES}", "/after-bomb.xml": f"{MAX_XML_DEPTH}",
        "/deep.xml": f"{MAX_XML_DEPTH}", "/gzip-bomb.xml.gz": f"{MAX_LISTING_BYTES >> 20} MiB",
        "/bomb.xml": "entity", "/external.xml": "entity", "/parameter.xml": "entity",
    }  # fmt: skip
    assert {path for path, limit in limits.items() if limit not in said[path]} == set(), said
    assert sorted(exchange.path for exchange in served.log()) == sorted(["/robots.txt", *ends]), "each once"
    assert peak < 512 * MIB, f"{peak >> 20} MiB"


def test_redirects_in_circles_end_after_one_round(web: Callable[..., Web], tmp_path: Path) -> None:
    served = web(SyntheticSite(pages=60, loops=300, redirects=200))
    run, summary, _ = crawled(served, tmp_path / "loops")
    assert summary["finished_reason"] == "complete"
    states = {row["url"].removeprefix(served.origins[0]): row for row in export("urls", run.out)}
    # A redirect is a discovery like any other: in a circle it leads to what is known.
    loops = [path for path in states if path.startswith("/loop/")]
    assert len(loops) >= 4
    assert {states[path]["state"] for path in loops} == {"done"}
    assert {row["url"] for row in export("pages", run.out) if row["status"] == 200} == set(served.expected_pages())
