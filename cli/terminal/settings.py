"""Reads the settings of a master or worker from flags, `ORB_*` variables and a file."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
import yaml

from cli.terminal.exits import Usage
from cli.terminal.yaml_input import document, text_of
from shared.domain.errors import Unusable
from shared.domain.suggestions import nearest
from shared.settings import (
    PREFIX,
    ClusterMasterSettings,
    ClusterWorkerSettings,
    SettingOrigin,
    SettingValue,
    in_environment,
    settled,
)

Process = TypeVar("Process", bound=msgspec.Struct)

CONFIG: Final = f"{PREFIX}CONFIG"
"""The environment variable with the path of the settings file. The flag `--config` overrides it."""

KINDS: Final[Mapping[str, type[msgspec.Struct]]] = {"master": ClusterMasterSettings, "worker": ClusterWorkerSettings}


def gathered(
    role: str, flags: Mapping[str, str], arguments: argparse.Namespace, environment: Mapping[str, str]
) -> dict[str, SettingValue]:
    """Return all settings of a role that are set somewhere, by name. The role is `master` or `worker`.

    A flag overrides a variable, and a variable overrides the file. Raise Usage with every error in the file.

    - `flags`: the command-line flag of each setting, by the name of the setting.
    - `environment`: the environment variables.
    """
    kind = KINDS[role]
    named = getattr(arguments, "config", None) or environment.get(CONFIG)
    by_file = {} if not named else in_file(role, Path(named))
    by_flags = {
        name: SettingValue(value, SettingOrigin.FLAG, flag)
        for name, flag in flags.items()
        if (value := getattr(arguments, name, None)) is not None
    }
    return {**by_file, **in_environment(kind, environment), **by_flags}


def read(kind: type[Process], values: Mapping[str, SettingValue], flags: Mapping[str, str]) -> Process:
    """Convert the texts of settings to the settings of a process, of the type `kind`.

    Raise Usage with every missing or invalid setting. `flags`: the command-line flag of each setting, for the message.
    """
    try:
        return settled(kind, values, flags)
    except Unusable as error:
        raise Usage(str(error)) from error


def in_file(role: str, path: Path) -> dict[str, SettingValue]:
    """Read the settings of a role (`master` or `worker`) from a YAML file. A list becomes a text joined by commas.

    Raise Usage with every error in the file, each with its line number if that is known. An unknown key is an error.
    """
    text = text_of(path, "configuration")
    data = document(text, str(path))
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise Usage(f"{path} must be a mapping of settings such as `log_level: info`.")
    lines = _lines(text)
    values, problems = {}, []
    for key, value in data.items():
        place = f"{path}:{lines[str(key)]}" if str(key) in lines else str(path)
        if key not in KINDS[role].__struct_fields__:
            problems.append(f"{place}: {_unknown(role, str(key))}")
        elif isinstance(value, dict) or (isinstance(value, list) and any(isinstance(v, dict | list) for v in value)):
            problems.append(f"{place}: {key} must be a single value, or a list of single values.")
        elif value is not None:
            values[key] = SettingValue(_text(value), SettingOrigin.FILE, place)
    if problems:
        raise Usage("\n".join(problems))
    return values


def _unknown(role: str, key: str) -> str:
    """Return the error for `key`, which is not a setting of the role, with a suggestion if a setting is similar."""
    for other, kind in KINDS.items():
        if key in kind.__struct_fields__:
            return f"{key} is a setting of a {other}, not of a {role}."
    close = nearest(key.replace("-", "_"), KINDS[role].__struct_fields__)
    meant = f" Did you mean {close}?" if close else ""
    return f"there is no setting {key!r} of a {role}.{meant}"


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(_text, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _lines(text: str) -> dict[str, int]:
    """Return the line number of each top-level key in a YAML document, from 1.

    Return an empty mapping if the YAML parser cannot read the text. This may happen if it is JSON.
    """
    try:
        # JSON may be indented with tabs, which YAML forbids.
        node = yaml.compose(text.replace("\t", " "), yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError):
        return {}
    assert isinstance(node, yaml.MappingNode)
    return {key.value: key.start_mark.line + 1 for key, _ in node.value}
