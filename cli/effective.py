"""The settings of a member of a cluster, gathered from where they are said: flags, `ORB_*` variables, a file."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
import yaml

from cli.exits import Usage
from cli.written import document, text_of
from shared.domain.errors import Unusable
from shared.domain.meant import nearest
from shared.settings import (
    PREFIX,
    ClusterMasterSettings,
    ClusterWorkerSettings,
    Origin,
    Said,
    in_environment,
    settled,
)

Process = TypeVar("Process", bound=msgspec.Struct)

CONFIG: Final = f"{PREFIX}CONFIG"
"""The variable that names the file, where no flag does."""

KINDS: Final[Mapping[str, type[msgspec.Struct]]] = {"master": ClusterMasterSettings, "worker": ClusterWorkerSettings}


def gathered(
    role: str, flags: Mapping[str, str], arguments: argparse.Namespace, environment: Mapping[str, str]
) -> dict[str, Said]:
    """What is said of the settings of a role, each by whoever goes first: a flag, a variable, the file.

    `flags`: the name of each flag by its setting. Usage with all that is wrong in the file.
    """
    kind = KINDS[role]
    named = getattr(arguments, "config", None) or environment.get(CONFIG)
    by_file = {} if not named else in_file(role, Path(named))
    by_flags = {
        name: Said(value, Origin.FLAG, flag)
        for name, flag in flags.items()
        if (value := getattr(arguments, name, None)) is not None
    }
    return {**by_file, **in_environment(kind, environment), **by_flags}


def read(kind: type[Process], said: Mapping[str, Said], flags: Mapping[str, str]) -> Process:
    """The settings. Usage with all that is missing or wrong; `flags`: by which a setting may be told."""
    try:
        return settled(kind, said, flags)
    except Unusable as error:
        raise Usage(str(error)) from error


def in_file(role: str, path: Path) -> dict[str, Said]:
    """What a file of YAML says of the settings of a role, a list as its parts separated by commas.

    Usage with everything that is wrong in it, each with its line: what is no setting of this role above all, since a
    misspelt setting would otherwise be one that silently has its default.
    """
    text = text_of(path, "configuration")
    data = document(text, str(path))
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise Usage(f"{path} must be a mapping of settings such as `log_level: info`.")
    lines = _lines(text)
    said, problems = {}, []
    for key, value in data.items():
        place = f"{path}:{lines.get(str(key), 1)}"
        if key not in KINDS[role].__struct_fields__:
            problems.append(f"{place}: {_unknown(role, str(key))}")
        elif isinstance(value, dict) or (isinstance(value, list) and any(isinstance(v, dict | list) for v in value)):
            problems.append(f"{place}: {key} must be a single value, or a list of such.")
        elif value is not None:
            said[key] = Said(_text(value), Origin.FILE, place)
    if problems:
        raise Usage("\n".join(problems))
    return said


def _unknown(role: str, key: str) -> str:
    """What is wrong with a key that is no setting of the role, and what was perhaps meant."""
    for other, kind in KINDS.items():
        if key in kind.__struct_fields__:
            return f"{key} is a setting of a {other}, and a {role} has none of this name."
    close = nearest(key.replace("-", "_"), KINDS[role].__struct_fields__)
    meant = f" Did you mean {close}?" if close else ""
    return f"there is no setting {key!r} of a {role}.{meant}"


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(_text, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _lines(text: str) -> dict[str, int]:
    """The line of each key of the mapping that is the document."""
    node = yaml.compose(text, yaml.SafeLoader)
    assert isinstance(node, yaml.MappingNode)
    return {key.value: key.start_mark.line + 1 for key, _ in node.value}
