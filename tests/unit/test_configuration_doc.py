"""docs/configuration.md names every setting with its flag and default, and every hot value."""

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cli.local.member import flags_of
from cli.terminal.settings import KINDS
from shared.domain.ops.config import HotConfig, MasterPart, RetentionPart, StoragePart, WorkerPart

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "configuration.md").read_text("utf-8")


def rows(heading: str) -> dict[str, list[str]]:
    """The rows of the table below a heading, by the name in their first cell."""
    table = TEXT.split(f"\n{heading}\n", 1)[1].split("\n#", 1)[0]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line[:2] == "| "]
    return {name[1]: row for row in cells if (name := re.match(r"`([a-z_]+)`", row[0]))}


def shown(field: msgspec.structs.FieldInfo) -> Any:
    """The default as the document has it; None where it says it in words."""
    if field.required:
        return "none, needed"
    return None if field.default in (None, "") else str(field.default)


@pytest.mark.parametrize(("role", "heading"), [("master", "### Of masters"), ("worker", "### Of workers")])
def test_every_setting_stands_in_the_document_with_its_flag_and_default(role: str, heading: str) -> None:
    told = {**rows("### Of every member"), **rows(heading)}
    fields = {field.name: field for field in msgspec.structs.fields(KINDS[role])}
    assert set(told) == set(fields)
    flags = flags_of(role)
    for name, (_, flag, default, *_) in told.items():
        assert flag.strip("`") == flags.get(name, "none"), name
        expected = shown(fields[name])
        assert expected is None or default.strip("`") == expected, name


def test_every_hot_value_stands_in_the_document() -> None:
    hot = TEXT.split("\n## Hot configuration\n", 1)[1]
    named = set(re.findall(r"`((?:worker|master|storage|retention|pools\.<name>)\.[a-z_]+|log_level)`", hot))
    parts = {f"{part}.{name}" for part in ("worker", "pools.<name>") for name in WorkerPart.__struct_fields__}
    parts |= {f"master.{name}" for name in MasterPart.__struct_fields__}
    parts |= {f"storage.{name}" for name in StoragePart.__struct_fields__}
    parts |= {f"retention.{name}" for name in RetentionPart.__struct_fields__}
    assert named == {"log_level", *parts}
    assert set(HotConfig.__struct_fields__) == {"log_level", "worker", "pools", "master", "storage", "retention"}


def test_a_star_marks_what_lies_under_the_hot_configuration() -> None:
    starred = {name for role in ("master", "worker") for name in starred_in(f"### Of {role}s")}
    assert starred | starred_in("### Of every member") == {"log_level", "grant_s", "max_visits", "report_s"}


def starred_in(heading: str) -> set[str]:
    return {name for name, row in rows(heading).items() if row[0].endswith("*")}
