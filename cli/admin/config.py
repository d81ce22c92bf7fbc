"""`orb config show`: print the settings with which a master or worker would start now, and where each is set."""

import argparse
import json
import os
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from cli.local.member import add_flags, flags_of
from cli.terminal.exits import Exit, Usage, failure
from cli.terminal.progress import say
from cli.terminal.settings import KINDS, gathered, read
from shared.domain.ops.config import MasterPart, WorkerPart
from shared.settings import SettingOrigin, SettingValue, masked

_HOT: Final[Mapping[str, frozenset[str]]] = {
    "master": frozenset((*MasterPart.__struct_fields__, "log_level")),
    "worker": frozenset((*WorkerPart.__struct_fields__, "log_level")),
}
_MISSING: Final = "(missing)"


def configure(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(metavar="show", dest="action", required=True)
    show = actions.add_parser("show", help="print the settings and their sources; secrets are masked")
    roles = show.add_subparsers(metavar="master|worker", dest="role", required=True)
    for role in KINDS:
        of_role = roles.add_parser(role, help=f"of `orb {role}`, with the same flags", allow_abbrev=False)
        add_flags(of_role, role)
        of_role.add_argument("--json", action="store_true", help="one JSON object on stdout")


def run(arguments: argparse.Namespace) -> int:
    role: str = arguments.role
    values = gathered(role, flags_of(role), arguments, os.environ)
    rows = shown(role, values)
    if arguments.json:
        return _as_json(role, values, rows)
    print(table(rows))
    read(KINDS[role], values, flags_of(role))
    return Exit.OK


def _as_json(role: str, values: Mapping[str, SettingValue], rows: list[dict[str, Any]]) -> int:
    """Print the role and its settings as a JSON object, and return the exit code.

    If the settings are invalid, also print the error, on stderr and in the object. The exit code is then Exit.USAGE.
    """
    facts: dict[str, Any] = {"role": role, "settings": rows}
    code = Exit.OK
    try:
        read(KINDS[role], values, flags_of(role))
    except Usage as problem:
        code = Exit.USAGE
        facts |= failure(code, problem)
        say(str(problem))
    print(json.dumps(facts, indent=2, ensure_ascii=False))
    return code


def shown(role: str, values: Mapping[str, SettingValue]) -> list[dict[str, Any]]:
    """Return one row for each setting of a role (`master` or `worker`), with its value and where it is set.

    - `values`: the settings that are set. Other settings have their defaults.
    - The field `hot` of a row is True if the hot configuration can change the setting at run time.
    - Secrets are masked. The value of a required setting that is not set is None.
    """
    rows = []
    for field in msgspec.structs.fields(KINDS[role]):
        setting = values.get(field.name)
        if setting is not None:
            value, origin, place = masked(field.name, setting.text), str(setting.origin), setting.place
        elif field.required:
            value, origin, place = None, "missing", ""
        else:
            value, origin, place = _default(field), str(SettingOrigin.DEFAULT), ""
        hot = field.name in _HOT[role]
        rows.append({"name": field.name, "value": value, "origin": origin, "place": place, "hot": hot})
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """Return a table of settings as text for the terminal. `rows` has one entry for each setting, from `shown`."""
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
    return "\n".join([*lines, "", "* can be changed at run time, for the whole cluster: /v1/config overrides this."])


def _default(field: msgspec.structs.FieldInfo) -> str:
    return "" if field.default is None else str(field.default)
