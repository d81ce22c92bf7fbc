"""`orb ctl` and a cluster of real parts: a crawl from its declaration to its bodies, and across a leader's death."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.processes.orb_command import orb
from tests.support.processes.up_process import upped
from tests.support.web.synthetic_site import SyntheticSite
from tests.support.web.web_server import Web

pytestmark = [pytest.mark.e2e, pytest.mark.faults, pytest.mark.timeout(300)]

SITE = SyntheticSite(pages=30, hosts=4)
CRAWL = """\
name: docs
spec:
  seeds: ["{origin}/"]
  scope: {{mode: any}}
  politeness: {{delay_s: 0.05}}
  egress: {{allow: [127.0.0.0/8]}}
"""


def ctl(*arguments: str | Path, code: int = 0) -> str:
    return orb("ctl", *arguments, code=code).decode()


def evidence(origin: str) -> str:
    """What became of the crawl and its seed, for a failure that is rare."""
    return "\n".join((ctl("stats", "docs"), ctl("explain", "docs", f"{origin}/"), ctl("logs", "docs")))


@pytest.mark.smoke
def test_a_crawl_is_run_read_and_changed_by_ctl_alone_while_its_leader_dies(
    web: Callable[..., Web], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = web(SITE)
    expected = sorted(SITE.expected_pages(served.origins))
    file = tmp_path / "crawl.yaml"
    file.write_text(CRAWL.format(origin=served.origins[0]))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    with upped(tmp_path / "orb.cluster", settings={"ORB_MEMBER_TTL_S": "3"}) as up:
        monkeypatch.setenv("ORB_SERVER", ",".join(up.facts["api"]))
        monkeypatch.setenv("ORB_API_KEY", str(up.key))
        assert ctl("apply", "-f", file) == "crawl/docs created\n"
        assert ctl("wait", "crawl", "docs", "--timeout", "120") == "crawl/docs finished\n"
        names = ctl("get", "pages", "-c", "docs", "-o", "name").splitlines()
        assert sorted(name.removeprefix("page/") for name in names) == expected, evidence(served.origins[0])
        rows = [json.loads(line) for line in ctl("export", "pages", "docs").splitlines()]
        assert sorted(row["url"] for row in rows) == expected
        table = tmp_path / "pages.parquet"
        ctl("export", "pages", "docs", "--out", table)
        assert table.read_bytes()[:4] == table.read_bytes()[-4:] == b"PAR1"
        assert len(orb("ctl", "body", "docs", rows[0]["url"])) == rows[0]["size"]
        told = [line.split()[4] for line in ctl("logs", "docs").splitlines()]
        assert (told[:2], told[-1]) == (["created", "started"], "finished")
        assert ctl("seeds", "delete", "docs", f"{served.origins[0]}/", code=2) == ""  # a spec keeps one

        masters = json.loads(ctl("get", "masters", "-o", "json"))["items"]
        leader = next(master["id"] for master in masters if master["leading"])
        up.child(leader).kill()
        file.write_text(CRAWL.format(origin=served.origins[0]) + "  budget: {max_pages: 1000}\n")
        assert ctl("apply", "-f", file) == "crawl/docs configured\n"
        assert ctl("start", "docs") == "crawl/docs started again\n"
        assert ctl("wait", "crawl", "docs", "--timeout", "120") == "crawl/docs finished\n"
        assert ctl("delete", "crawl", "docs") == "crawl/docs deleted\n"
        assert json.loads(ctl("get", "crawls", "-o", "json")) == {"items": []}
