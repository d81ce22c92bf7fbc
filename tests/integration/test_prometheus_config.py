"""Prometheus' own judge accepts the configuration of deploy/prometheus."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
DEPLOY: Final = ROOT / "deploy"


def test_prometheus_own_judge_finds_nothing_wrong(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        reason = "promtool is not installed: apt-get install prometheus"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    folder = shutil.copytree(DEPLOY / "prometheus", tmp_path / "prometheus")
    for name in ("ca.pem", "tls.pem", "tls.key"):
        (tmp_path / name).touch()
    config = folder / "prometheus.yml"
    config.write_text(config.read_text().replace("/certs/", f"{tmp_path}/"))
    judged = subprocess.run([promtool, "check", "config", config], capture_output=True, text=True, check=False)
    assert judged.returncode == 0, judged.stdout + judged.stderr
