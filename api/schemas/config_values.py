"""The request and response bodies for a single setting of the hot configuration, and the names of all settings."""

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Final, Literal, get_args

import msgspec
from pydantic import BaseModel, BeforeValidator, Field

from api.schemas.config import (
    DEFAULTS,
    HotConfiguration,
    MasterValues,
    RetentionValues,
    StorageValues,
    WorkerValues,
    config_of,
)
from api.schemas.crawls import NAME
from api.schemas.model import Model, RequestModel, field
from shared.domain.ops.config import HotConfig, LogLevel, master_tuning
from shared.domain.ops.config import MasterTuning as Tuning

_PARTS: Final[Mapping[str, type[BaseModel]]] = {
    "worker": WorkerValues,
    "master": MasterValues,
    "storage": StorageValues,
    "retention": RetentionValues,
}
_POOLS: Final = "pools"
_LOG_LEVEL: Final = "log_level"
_GRANT: Final = "master.grant_s"
_FROM_START: Final = frozenset((_GRANT, *(f"worker.{name}" for name in WorkerValues.model_fields)))
"""Settings that can differ by member, because each member is started with its own value.

While the configuration does not set such a setting, the API shows null as its effective value.
"""
# `log_level` is not in this set, but `_effective` treats it in the same way.

_UNITS: Final[Mapping[str, Literal["s", "bytes", "days", "ratio"]]] = {
    "_s": "s",
    "_bytes": "bytes",
    "_days": "days",
    "_ratio": "ratio",
}
"""The unit of a setting, by the ending of the setting's name. A setting with another ending has no unit."""

_DEFAULT_TEXT: Final = re.compile(r" Default: `[^`]*`\.$")

Scalar = int | float | str


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of the hot configuration, such as `worker.max_visits`.

    - `path`: the keys that lead to the setting in the configuration document.
    - `part`: the pydantic model of the section that contains the setting.
    """

    path: tuple[str, ...]
    part: type[BaseModel]

    @property
    def name(self) -> str:
        """The name of the setting: its path, joined by dots."""
        return ".".join(self.path)

    @property
    def usual(self) -> tuple[str, str]:
        """The section and the name by which the default of this setting is looked up.

        - `master.grant_s`: `("master", "grant_s")`.
        - `pools.eu.max_visits`: `("worker", "max_visits")`, because a pool has no defaults of its own.
        - `log_level`, which is in no section: `("log_level", "log_level")`.
        """
        return ("worker" if self.path[0] == _POOLS else self.path[0], self.path[-1])

    @property
    def default(self) -> Scalar:
        """The value that a member uses if it was started without flags and no configuration sets another."""
        part, name = self.usual
        value: Scalar = DEFAULTS["master"][name] if part == _LOG_LEVEL else DEFAULTS[part][name]
        return value

    def of(self, config: HotConfig) -> Scalar | None:
        """Return the value that `config` sets for this setting. Return None if it sets none."""
        found: Any = msgspec.to_builtins(config)
        for part in self.path:
            found = found.get(part) if isinstance(found, dict) else None
        return found if isinstance(found, Scalar) else None

    def read(self, given: Scalar) -> Scalar:
        """Check the value `given` of a request and return it as it is stored.

        Raise ValidationError if the setting does not allow this value.
        """
        body = self.part.model_validate({self.path[-1]: given})
        outer: Any = body.model_dump(exclude_none=True)
        for part in reversed(self.path[:-1]):
            outer = {part: outer}
        value = self.of(config_of(HotConfiguration.model_validate(outer)))
        assert value is not None
        return value


def settings() -> Iterable[str]:
    """Return the names of all settings, except the settings of single pools."""
    return [_LOG_LEVEL, *(f"{part}.{name}" for part, body in _PARTS.items() for name in body.model_fields)]


def setting_of(name: str) -> Setting | None:
    """Return the setting with this name, such as `worker.max_visits` or `pools.eu.max_visits`.

    Return None if no setting has this name. The pool of a name need not exist.
    """
    match name.split("."):
        case ["log_level"]:
            return Setting((name,), HotConfiguration)
        case ["pools", pool, field] if re.fullmatch(NAME, pool) and field in WorkerValues.model_fields:
            return Setting((_POOLS, pool, field), WorkerValues)
        case [part, field] if part in _PARTS and field in _PARTS[part].model_fields:
            return Setting((part, field), _PARTS[part])
    return None


def names_to_suggest(name: str) -> Iterable[str]:
    """Return the names that a hint may suggest instead of the misspelled `name`. The caller picks the most similar one.

    The result always has the names of all settings outside of pools, such as `worker.max_visits`.

    Settings of a pool have names of the form `pools.POOL.SETTING`. The result has the settings of one pool, too, if the
    first part of `name` is no section such as `worker`. The first part may then be a misspelled `pools`, and the second
    part the pool. Example: `names_to_suggest("pool.eu.max_visit")` also returns `pools.eu.max_visits`.
    """
    first, _, rest = name.partition(".")
    pool = rest.partition(".")[0]
    of_pool = [f"{_POOLS}.{pool}.{field}" for field in WorkerValues.model_fields]
    return [*settings(), *(of_pool if re.fullmatch(NAME, pool) and first not in _PARTS else ())]


def _scalar(given: Any) -> Any:
    """Return a number or a text unchanged. Raise ValueError for any other value, such as a bool."""
    if isinstance(given, bool) or not isinstance(given, Scalar):
        raise ValueError("expected a number or a text; DELETE gives the setting its default again")
    return given


class ConfigValueInput(RequestModel):
    """The new value of one setting of the hot configuration."""

    value: Annotated[Scalar, BeforeValidator(_scalar)] = Field(
        description="The value, within the limits that GET shows.", examples=[512]
    )


class ConfigValue(Model):
    """One setting of the hot configuration: its value, default and limits."""

    name: str = field("The name of the setting: its place in the configuration.", "worker.max_visits")
    description: str = field("What it sets.", "The number of URL shards that a worker holds at a time.")
    value: Scalar | None = field("The value that was put. Null if none was, or if it was deleted.", 512)
    default: Scalar = field("The value of a member that was started without flags, where nothing sets another.", 1024)
    effective: Scalar | None = field(
        "The value that holds. It differs from `value` if another setting bounds or replaces it. Null if each member "
        "has the value that it was started with.",
        512,
    )
    type: Literal["integer", "number", "text"] = field("The type of the value.")
    unit: Literal["s", "bytes", "days", "ratio"] | None = field("The unit. Null for a count and for a text.")
    minimum: float | None = field("The least value. Null if there is no such limit.", 1)
    exclusive_minimum: float | None = field("The value must be above this. Null if there is no such limit.", 0)
    maximum: float | None = field("The greatest value. Null if there is no such limit.", 100000)
    choices: list[str] | None = field("The possible texts. Null for a number.", ["debug", "info"])


def value_body(setting: Setting, config: HotConfig, longest_grant_s: float) -> ConfigValue:
    """Return a setting of the hot configuration as the API shows it.

    `longest_grant_s` is the `grant_s` with which the masters were started: the maximum of the setting `master.grant_s`.
    """
    text, number = _described(setting.part)[setting.path[-1]]
    value, kind = setting.of(config), number.get("type")
    longest = longest_grant_s if setting.name == _GRANT else number.get("maximum")
    return ConfigValue(
        name=setting.name,
        description=text,
        value=value,
        default=setting.default,
        effective=_effective(setting, config, longest_grant_s),
        type="integer" if kind == "integer" else "number" if kind == "number" else "text",
        unit=next((unit for ending, unit in _UNITS.items() if setting.path[-1].endswith(ending)), None),
        minimum=number.get("minimum"),
        exclusive_minimum=number.get("exclusiveMinimum"),
        maximum=longest,
        choices=list(get_args(LogLevel)) if setting.name == _LOG_LEVEL else None,
    )


@cache
def _described(part: type[BaseModel]) -> Mapping[str, tuple[str, Mapping[str, Any]]]:
    """Return the description (without the default) and the JSON schema of each setting of a section, by name."""
    properties = part.model_json_schema()["properties"]
    return {
        name: (
            _DEFAULT_TEXT.sub("", str(shown["description"])),
            next(each for each in shown["anyOf"] if each.get("type") != "null"),
        )
        for name, shown in properties.items()
        if "anyOf" in shown
    }


def tag_of(shown: ConfigValue) -> str:
    """Return the ETag of a setting. It changes if the set value, the effective value or the default changes."""
    parts = (shown.name, shown.value, shown.effective, shown.default)
    return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()[:16]


def _effective(setting: Setting, config: HotConfig, longest_grant_s: float) -> Scalar | None:
    value = setting.of(config)
    part, name = setting.usual
    if value is None and setting.path[0] == _POOLS:
        value = Setting((part, name), WorkerValues).of(config)
    tuning = master_tuning(config, Tuning(grant_s=longest_grant_s))
    if part == "storage":
        marks = tuning.storage
        return {"high_watermark_ratio": marks.high, "low_watermark_ratio": marks.low}.get(name, marks.headroom)
    if value is not None:
        return min(value, longest_grant_s) if setting.name == _GRANT and not isinstance(value, str) else value
    return None if ".".join((part, name)) in _FROM_START or part == _LOG_LEVEL else setting.default
