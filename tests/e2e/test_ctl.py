"""`orb ctl` and a cluster of real parts: a crawl from its declaration to its bodies, and across a leader's death."""

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.processes.orb_command import ROOT, command_line, orb
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


RULES = """\
kind: host-policy
host: a.test
delay_s: 2
---
target: private.test
reason: by mail
---
config: {log_level: warning}
---
name: nightly
crawl: c7
verb: start
cron: 30 2 * * *
---
kind: seed-set
crawl: c7
name: partners
seeds: [https://a.test/partner]
"""
COUNT = 60


@pytest.mark.long
def test_estate_is_applied_over_a_leader_change_and_moves_to_another_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader is killed while an apply runs. A repeat finds or makes all that is declared, and each of it once."""
    folder, exported = tmp_path / "files", tmp_path / "exported"
    folder.mkdir()
    crawl = "name: c{n}\nlabels: {{team: x}}\nstart: false\nspec: {{seeds: [https://a.test/{n}]}}\n"
    (folder / "crawls.yaml").write_text("---\n".join(crawl.format(n=n) for n in range(COUNT)))
    (folder / "rules.yaml").write_text(RULES)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    with upped(tmp_path / "a.cluster", settings={"ORB_MEMBER_TTL_S": "3"}) as up:
        monkeypatch.setenv("ORB_SERVER", ",".join(up.facts["api"]))
        monkeypatch.setenv("ORB_API_KEY", str(up.key))
        masters = json.loads(ctl("get", "masters", "-o", "json"))["items"]
        leader = next(master["id"] for master in masters if master["leading"])
        with subprocess.Popen(
            command_line("ctl", "apply", "-f", folder, "--patience", "60"),
            cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        ) as applying:  # fmt: skip
            assert applying.stdout is not None
            assert applying.stdout.readline() == "config configured\n"
            up.child(leader).kill()
            said, told = applying.communicate(timeout=120)
        if applying.returncode != 0:  # the message says how far it came
            assert applying.returncode in (1, 4), told
            assert re.search(r"^orb: \d+ of 65 are done; not done: .*; repeat the command to continue$", told, re.M)
        titles = [line.rpartition(" ")[0] for line in ("config configured\n" + said).splitlines()]
        repeated = ctl("apply", "-f", folder).splitlines()
        assert [line.rpartition(" ")[0] for line in repeated][: len(titles)] == titles
        assert len(repeated) == COUNT + 5
        assert {line.rpartition(" ")[2] for line in repeated[: len(titles)]} == {"unchanged"}
        assert ctl("diff", "-f", folder) == ""
        names = [each["name"] for each in json.loads(ctl("get", "crawls", "-o", "json"))["items"]]
        assert sorted(names) == sorted(f"c{n}" for n in range(COUNT))
        log = json.loads(ctl("get", "audit", "--action", "crawl.create", "-o", "json"))["items"]
        assert len(log) == len({each["target"] for each in log}) == COUNT, "each is created once"

        (folder / "crawls.yaml").write_text(crawl.format(n=7))
        pruned = ctl("apply", "-f", folder, "--prune", "-l", "team=x", "--yes").splitlines()
        assert [line for line in pruned if line.endswith("deleted")] == [
            f"crawl/{name} deleted" for name in sorted(names) if name != "c7"
        ]
        ctl("export", "estate", "--out", exported)
        stream = ctl("export", "estate")
        assert {line.rpartition(" ")[2] for line in ctl("apply", "-f", exported).splitlines()} == {"unchanged"}
    with upped(tmp_path / "b.cluster") as up:
        monkeypatch.setenv("ORB_SERVER", ",".join(up.facts["api"]))
        monkeypatch.setenv("ORB_API_KEY", str(up.key))
        assert ctl("apply", "-f", exported).splitlines() == [
            "config configured",
            "exclusion/private.test created",
            "host-policy/a.test created",
            "crawl/c7 created",
            "seed-set/c7/partners created",
            "schedule/nightly created",
            "api-key/first-admin unchanged",
        ]
        assert ctl("export", "estate") == stream
