"""The pages on Terraform: attributes are those of the schemas, configurations those of the examples."""

import re
import subprocess
from pathlib import Path

import pytest

from cli.dev.terraform import EXECUTABLE, PROVIDER, install, overrides
from tests.support import doc_examples
from tests.support.processes.orb_command import orb
from tests.support.terraform.attribute_tables import PAGE, page
from tests.support.terraform.core import Plugin

EXAMPLES = PROVIDER.parent / "examples"


def test_page_of_attributes_is_that_of_the_schemas(tmp_path: Path) -> None:
    plugin = Plugin({}, tmp_path / "errors")
    try:
        assert PAGE.read_text("utf-8") == page(plugin), (
            "run .venv/bin/python -m tests.support.terraform.attribute_tables"
        )
    finally:
        assert plugin.close() == 0


@pytest.mark.parametrize("name", ["README.md", "docs/terraform.md"])
def test_configuration_of_a_page_is_the_example(name: str) -> None:
    shown = [block.text for block in doc_examples.blocks(name) if block.first == "terraform {"]
    assert shown == [(EXAMPLES / "crawl" / "main.tf").read_text().rstrip()]


def test_examples_show_every_resource(tmp_path: Path) -> None:
    plugin = Plugin({}, tmp_path / "errors")
    assert plugin.close() == 0
    text = "".join(path.read_text() for path in EXAMPLES.glob("*/main.tf"))
    shown = set(re.findall(r'^resource "(\w+)"', text, re.MULTILINE))
    assert shown == set(plugin.resources)


def test_install_prints_the_block_that_terraform_reads() -> None:
    """As the page shows it, with the folder of this clone."""
    said = orb("terraform", "install").decode()
    folder = install()
    assert overrides(folder) in said
    (shown,) = [block.text for block in doc_examples.blocks("docs/terraform.md") if "dev_overrides" in block.text]
    assert overrides(folder) == shown.replace("/path/of/the/clone/deploy/terraform/provider/.venv/bin", str(folder))
    assert "-sE" in (folder / EXECUTABLE).read_text()


def test_executable_needs_no_variable_home_or_folder(tmp_path: Path) -> None:
    """Its environment is its own: neither PYTHONPATH nor the user's packages are seen."""
    (tmp_path / "orb_provider.py").write_text("raise SystemExit('the wrong package')")
    environ = {"PYTHONPATH": str(tmp_path), "HOME": "/nowhere"}
    done = subprocess.run(
        [install() / EXECUTABLE], capture_output=True, text=True, env=environ, cwd=tmp_path, check=False
    )
    assert "a plugin that Terraform starts" in done.stderr
