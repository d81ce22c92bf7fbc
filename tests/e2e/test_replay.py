"""Archives replay in pywb: a crawl's folder by the commands of `orb replay`, and a cluster's archive over its API."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Final

import httpx
import pytest

from tests.support.api.cluster_clients import address, asking
from tests.support.engines.ports import free_ports
from tests.support.processes.cluster import cluster
from tests.support.processes.orb_command import command_line, orb
from tests.support.web.pywb import pywb, pywb_folder
from tests.support.web.synthetic_site import SyntheticSite
from tests.support.web.web_server import Web

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

SITE: Final = SyntheticSite(pages=12)


@pytest.fixture(scope="module")
def programs() -> Path:
    return pywb_folder()


def test_commands_of_orb_replay_show_the_pages_of_a_folder(
    programs: Path, web: Callable[..., Web], tmp_path: Path
) -> None:
    served = web(SITE)
    seed, folder = f"{served.origins[0]}/", tmp_path / "it's a site.crawl"
    orb("crawl", seed, "--out", folder, "--delay", "0", "--allow-net", "127.0.0.0/8", "--no-progress")
    [port] = free_ports(1)
    printed = subprocess.run(
        command_line("replay", folder, "--port", str(port)),
        env={**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    )
    configure, start = printed.stdout.splitlines()
    assert f"http://localhost:{port}/" in printed.stderr
    subprocess.run(configure, shell=True, cwd=tmp_path, check=True)
    with pywb(tmp_path, ["sh", "-c", f"exec env {start}"], {}, port) as replay:
        [collection] = json.loads(next(tmp_path.glob("*.pywb.yaml")).read_text())["collections"]
        for url in sorted(SITE.expected_pages(served.origins)):
            assert replay.replayed(collection, url).content == httpx.get(url).content, url
        assert replay.replayed(collection, f"{served.origins[0]}/never").status_code == 404


def test_cluster_archive_replays_over_its_api_for_a_viewer(
    programs: Path, web: Callable[..., Web], tmp_path: Path
) -> None:
    served = web(SITE)
    spec = {
        "seeds": [f"{served.origins[0]}/"],
        "politeness": {"delay_s": 0.02},
        "egress": {"allow": ["127.0.0.0/8"]},
    }
    with cluster(tmp_path) as members:
        members.master("m1", ORB_ARCHIVE=str(tmp_path / "w1" / "archive"))
        members.worker("w1")
        members.wait_working("w1")
        with asking(members, "m1") as api:
            assert api.post("/v1/crawls", json={"name": "docs", "spec": spec}).status_code == 201
            members.wait_until(
                lambda: api.get("/v1/crawls/docs").json()["state"] == "finished", "the crawl is finished"
            )
            made = api.post("/v1/api-keys", json={"name": "replay", "role": "viewer"})
            assert made.status_code == 201
        crawl = address(members, "m1").replace("://", f"://pywb:{made.json()['key']}@") + "/v1/crawls/docs"
        source = {"index_paths": f"cdx+{crawl}/cdx", "archive_paths": f"{crawl}/segments/"}
        config = tmp_path / "config.yaml"
        config.write_text(json.dumps({"collections": {"docs": source}}))
        [port] = free_ports(1)
        start = [str(programs / "wayback"), "--bind", "127.0.0.1", "--port", str(port)]
        with pywb(tmp_path, start, {"PYWB_CONFIG_FILE": str(config)}, port) as replay:
            for url in sorted(SITE.expected_pages(served.origins)):
                assert replay.replayed("docs", url).content == httpx.get(url).content, url
            assert replay.replayed("docs", f"{served.origins[0]}/never").status_code == 404
