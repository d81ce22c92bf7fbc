"""What a member exposes: its metrics, scraped and read by the parser of Prometheus's own library."""

import subprocess
from collections.abc import Iterable, Mapping

import httpx
from prometheus_client.parser import text_string_to_metric_families


class Scrape:
    """The samples of one or more members, added up."""

    def __init__(self, texts: Iterable[str]) -> None:
        self.texts = tuple(texts)
        self._samples = [
            sample for text in self.texts for each in text_string_to_metric_families(text) for sample in each.samples
        ]

    def __repr__(self) -> str:
        return f"<Scrape of {len(self.texts)} members, {len(self._samples)} samples>"

    def sum(self, name: str, **labels: str) -> float:
        """All samples of this name with these labels, together."""
        return sum(
            sample.value for sample in self._samples if sample.name == name and labels.items() <= sample.labels.items()
        )

    def by(self, label: str, name: str, **labels: str) -> dict[str, float]:
        """Sums by the values of a label; zeros are left out."""
        found: dict[str, float] = {}
        for sample in self._samples:
            if sample.name == name and labels.items() <= sample.labels.items():
                value = sample.labels[label]
                found[value] = found.get(value, 0.0) + sample.value
        return {value: n for value, n in found.items() if n}

    def names(self) -> set[str]:
        """The names of all samples."""
        return {sample.name for sample in self._samples}

    def labels(self, name: str) -> list[Mapping[str, str]]:
        """The labels of every sample of this name."""
        return [sample.labels for sample in self._samples if sample.name == name]


def scraped(*addresses: str) -> Scrape:
    """Scrape members at these `host:port`."""
    texts = []
    for address in addresses:
        response = httpx.get(f"http://{address}/metrics", timeout=20)
        assert response.status_code == 200, response.text
        texts.append(response.text)
    return Scrape(texts)


def faults_found_by(promtool: str, text: str) -> str:
    """What `promtool check metrics` says against it; empty when it is clean."""
    done = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, text=True, timeout=60)
    said = (done.stdout + done.stderr).strip()
    return said if said or done.returncode == 0 else f"exit status {done.returncode}"
