"""`orb up` while it starts: it can be ended at any moment, whatever its engines do."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from cli.local.addresses import HOST, Address
from cli.local.cluster_folder import ClusterFolder
from cli.local.local_cluster import ClusterPlan, LocalCluster
from cli.local.process_group import RunEnd, RunOutcome
from cli.terminal.progress import Silent
from shared.adapters.etcd import EmbeddedEtcd
from shared.domain.errors import Transient


def test_a_start_whose_etcd_stands_still_ends_at_the_first_ctrl_c(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unanswered(_: EmbeddedEtcd) -> None:
        """As `end_sessions` does where nobody answers; and Ctrl-C while it is tried again."""
        os.kill(os.getpid(), signal.SIGINT)
        raise Transient("etcd does not answer", retry_in=3600.0)

    monkeypatch.setattr(EmbeddedEtcd, "end_sessions", unanswered)

    async def story() -> RunOutcome:
        folder = ClusterFolder(tmp_path / "cluster")
        folder.make()
        with folder.held() as lock:
            masters = {"master-1": Address(HOST, 1)}
            plan = ClusterPlan(masters=masters, workers={}, database=str(folder.database), nats_port=-1)
            cluster = LocalCluster(folder, plan, lock=lock, watch=Silent(notes=False), ready=lambda engines: None)
            return await asyncio.wait_for(cluster.run(), 100)

    assert asyncio.run(story()) == RunOutcome(RunEnd.INTERRUPTED)
