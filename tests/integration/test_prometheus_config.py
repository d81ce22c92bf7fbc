"""Prometheus' own judge accepts the configuration of deploy/prometheus."""

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest
import yaml

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


def jobs(text: str) -> set[str]:
    """The names of the jobs in a configuration of Prometheus."""
    return {job["job_name"] for job in yaml.safe_load(text)["scrape_configs"]}


def test_documented_jobs_have_the_names_that_alerts_and_dashboard_need() -> None:
    (example,) = re.findall(
        r"^```yaml\n(scrape_configs:\n.+?)^```$", (ROOT / "docs" / "metrics.md").read_text(), re.M | re.S
    )
    assert jobs(example) == jobs((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    alerts = (DEPLOY / "prometheus" / "alerts.yml").read_text()
    dashboard = (DEPLOY / "grafana" / "dashboards" / "orbweaver.json").read_text().replace('\\"', '"')
    named = set(re.findall(r'job="([^"]+)"', alerts + dashboard))
    assert named
    assert named <= jobs(example)
    assert all(re.fullmatch(r"orb-.*", name) for name in jobs(example)), "OrbMemberDown looks at these"
