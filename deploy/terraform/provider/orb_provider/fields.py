"""The types that describe the attributes of the provider, its resources and its data sources."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Final

Values = dict[str, Any]
"""The values of a resource by attribute: text, numbers, lists, maps, None, or UNKNOWN."""


class _Unknown:
    """The class of the single object UNKNOWN. Copies of it are the same object, so `is` works after a deep copy."""

    def __repr__(self) -> str:
        return "UNKNOWN"

    def __copy__(self) -> "_Unknown":
        return self

    def __deepcopy__(self, memo: object) -> "_Unknown":
        return self


UNKNOWN: Final = _Unknown()
"""A value that is known only after apply."""


class FieldType(Enum):
    """The type of an attribute.

    The framework has no object types. So the value of an attribute with a nested structure is a text with JSON (type
    JSON).
    """

    TEXT = auto()
    WHOLE = auto()
    NUMBER = auto()
    """A decimal number. Terraform sends it as text if a float cannot represent it exactly, such as 0.1."""
    SWITCH = auto()
    TEXTS = auto()
    LABELS = auto()
    JSON = auto()
    TIME = auto()


class Source(Enum):
    """Where the value of an attribute comes from: the configuration or the API."""

    REQUIRED = auto()
    """From the configuration, which must set the attribute."""
    OPTIONAL = auto()
    """From the configuration. If that does not set the attribute, the value is the field's `default`."""
    COMPUTED = auto()
    """From the API."""


@dataclass(frozen=True, slots=True)
class Field:
    """An attribute of a resource, a data source or the provider. `text` is its description.

    - `replaces`: True if a new value makes Terraform replace the resource by a new one.
    - `once`: True if the value is used only when the resource is created. Later changes have no effect.
    - `local`: True if the attribute is only in Terraform's state, not in the API.
    - `stable`: True if the API computes the value, and no update changes it.
    - `sensitive`: True if Terraform hides the value in its output.
    - `api`: the name of the field in the API. Empty: the same as `name`.
    """

    name: str
    type: FieldType
    text: str
    source: Source = Source.OPTIONAL
    default: Any = None
    replaces: bool = False
    once: bool = False
    local: bool = False
    stable: bool = False
    sensitive: bool = False
    api: str = ""

    @property
    def settable(self) -> bool:
        """True if the configuration may set the attribute, False if the API computes it."""
        return self.source is not Source.COMPUTED

    @property
    def api_name(self) -> str:
        """The name of the field in the API."""
        return self.api or self.name


def required(name: str, type: FieldType, text: str, **more: Any) -> Field:
    """Return an attribute that the configuration must set. `more` are further arguments of Field."""
    return Field(name, type, text, Source.REQUIRED, **more)


def computed(name: str, type: FieldType, text: str, **more: Any) -> Field:
    """Return an attribute whose value comes from the API. `more` are further arguments of Field."""
    return Field(name, type, text, Source.COMPUTED, **more)


@dataclass(frozen=True, slots=True)
class Shape:
    """The name, description (`text`) and attributes of a resource, a data source or the provider.

    `by_name` has the attributes by their names.
    """

    name: str
    text: str
    fields: tuple[Field, ...]
    by_name: Mapping[str, Field] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_name", {each.name: each for each in self.fields})

    def settable(self) -> Iterable[Field]:
        """Return the attributes that a configuration may set."""
        return (each for each in self.fields if each.settable)


def is_known(value: object) -> bool:
    """Return True if the value is not UNKNOWN and, if it is a map or list, contains no UNKNOWN."""
    match value:
        case _Unknown():
            return False
        case dict():
            return all(map(is_known, value.values()))
        case list() | tuple():
            return all(map(is_known, value))
        case _:
            return True
