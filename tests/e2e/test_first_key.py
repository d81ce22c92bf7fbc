"""The first admin key is shown by a master that goes on to serve: it is shown once, and is nowhere else."""

import socket
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.api.cluster_clients import FIRST_KEY
from tests.support.processes.cluster import cluster as opened

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]


def test_a_master_that_cannot_serve_ends_before_it_shows_the_first_key(tmp_path: Path) -> None:
    no_certificate = tmp_path / "own.pem"
    no_certificate.write_text("none")
    with opened(tmp_path) as cluster, socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        hindrances: Mapping[str, Mapping[str, str]] = {
            f"cannot listen at 127.0.0.1:{port}": {"ORB_HTTP": f"127.0.0.1:{port}"},
            str(no_certificate): {"ORB_TLS_CERT": str(no_certificate), "ORB_TLS_KEY": str(no_certificate)},
        }
        for number, (why, settings) in enumerate(hindrances.items()):
            refused = cluster.master(f"refused-{number}", **settings)
            assert refused.process.wait(60) == 4
            assert why in (said := refused.log.read_text())
            assert FIRST_KEY not in said
        served = cluster.master("m1")
        cluster.wait_until(lambda: "master.started" in served.log.read_text(), "it serves")
        assert served.log.read_text().count(FIRST_KEY) == 1
