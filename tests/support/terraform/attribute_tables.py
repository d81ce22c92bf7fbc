"""Writes docs/terraform-resources.md from the schemas that the provider serves.

.venv/bin/python -m tests.support.terraform.attribute_tables
"""

import tempfile
from base64 import b64decode
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tests.support.terraform.core import Plugin

PAGE: Final = Path(__file__).resolve().parents[3] / "docs" / "terraform-resources.md"
_HEAD: Final = """\
# Terraform: attributes

This page is generated from the provider's schemas. [Terraform](terraform.md) explains how to use them. `set` attributes
come from the configuration, `read` ones from the API.
"""


def page(plugin: Plugin) -> str:
    """Return the whole page."""
    schema = plugin.call("GetProviderSchema")
    parts = [_HEAD, _table("## The provider", schema["provider"])]
    for title, key in (("Resource", "resource_schemas"), ("Data source", "data_source_schemas")):
        parts += [_table(f"## {title} `{name}`", each) for name, each in sorted(schema[key].items())]
    return "\n".join(parts)


def _table(title: str, schema: Mapping[str, Any]) -> str:
    block = schema["block"]
    rows = [
        f"| `{each['name']}` | {_type(each)} | {_source(each)} | {each['description']} |"
        for each in sorted(block["attributes"], key=lambda each: not each.get("required", False))
    ]
    head = [title, "", block["description"], "", "| attribute | type | | meaning |", "|---|---|---|---|"]
    return "\n".join([*head, *rows, ""])


def _type(attribute: Mapping[str, Any]) -> str:
    """Return the type, which the schema has as JSON in base64."""
    text = b64decode(attribute["type"]).decode().replace('"', "")
    if not text.startswith("["):
        return text
    outer, _, inner = text.strip("[]").partition(",")
    return f"{outer} of {inner}s"


def _source(attribute: Mapping[str, Any]) -> str:
    if attribute.get("required"):
        return "set, required"
    if attribute.get("optional"):
        return "set, sensitive" if attribute.get("sensitive") else "set"
    return "read"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        plugin = Plugin({}, Path(folder) / "errors")
        try:
            PAGE.write_text(page(plugin), "utf-8")
        finally:
            plugin.close()


if __name__ == "__main__":
    main()
