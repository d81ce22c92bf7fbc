"""`orb config show`: the settings that a master or worker would be started with here, and where each is said."""

import argparse
import json
import os
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from cli.effective import KINDS, gathered, read
from cli.exits import Exit, Usage, failure
from cli.member import add_flags, flags_of
from cli.watch import say
from shared.domain.config import MasterPart, WorkerPart
from shared.settings import Origin, Said, masked

_HOT: Final[Mapping[str, frozenset[str]]] = {
    "master": frozenset((*MasterPart.__struct_fields__, "log_level")),
    "worker": frozenset((*WorkerPart.__struct_fields__, "log_level")),
}
_MISSING: Final = "(not told)"


def configure(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(metavar="show", dest="action", required=True)
    show = actions.add_parser("show", help="print the settings that hold, with their origin; secrets are masked")
    roles = show.add_subparsers(metavar="master|worker", dest="role", required=True)
    for role in KINDS:
        of_role = roles.add_parser(role, help=f"of `orb {role}`, with the same flags", allow_abbrev=False)
        add_flags(of_role, role)
        of_role.add_argument("--json", action="store_true", help="one JSON object on stdout")


def run(arguments: argparse.Namespace) -> int:
    role: str = arguments.role
    said = gathered(role, flags_of(role), arguments, os.environ)
    rows = shown(role, said)
    if arguments.json:
        return _as_json(role, said, rows)
    print(table(rows))
    read(KINDS[role], said, flags_of(role))
    return Exit.OK


def _as_json(role: str, said: Mapping[str, Said], rows: list[dict[str, Any]]) -> int:
    """Print the one object, with the fields of a failure if the settings are incomplete; return the exit code."""
    facts: dict[str, Any] = {"role": role, "settings": rows}
    code = Exit.OK
    try:
        read(KINDS[role], said, flags_of(role))
    except Usage as problem:
        code = Exit.USAGE
        facts |= failure(code, problem)
        say(str(problem))
    print(json.dumps(facts, indent=2, ensure_ascii=False))
    return code


def shown(role: str, said: Mapping[str, Said]) -> list[dict[str, Any]]:
    """Every setting of a role: its value as it may be shown, where it comes from, and whether it can be turned while
    the process runs. A value that is missing is None."""
    rows = []
    for field in msgspec.structs.fields(KINDS[role]):
        found = said.get(field.name)
        if found is not None:
            value, origin, place = masked(field.name, found.text), str(found.origin), found.place
        elif field.required:
            value, origin, place = None, "missing", ""
        else:
            value, origin, place = _default(field), str(Origin.DEFAULT), ""
        hot = field.name in _HOT[role]
        rows.append({"name": field.name, "value": value, "origin": origin, "place": place, "hot": hot})
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """The rows for people."""
    cells = [
        (
            row["name"] + ("*" if row["hot"] else ""),
            _MISSING if row["value"] is None else row["value"] or "-",
            f"{row['origin']} {row['place']}".strip(),
        )
        for row in rows
    ]
    head = ("SETTING", "VALUE", "ORIGIN")
    name, value = (max(len(each[column]) for each in (head, *cells)) for column in (0, 1))
    lines = [f"{row[0]:<{name}}  {row[1]:<{value}}  {row[2]}".rstrip() for row in (head, *cells)]
    return "\n".join([*lines, "", "* may be turned while it runs, for the whole cluster: /v1/config goes over this."])


def _default(field: msgspec.structs.FieldInfo) -> str:
    return "" if field.default is None else str(field.default)
