"""Parse user input into a crawl spec, or report all problems in it at once, each with its path."""

import math
import re
from collections.abc import Mapping
from enum import Enum
from typing import Annotated, Any, Final, TypeVar, get_args, get_origin

import msgspec
from msgspec.structs import FieldInfo, fields

from shared.domain.crawl.item_rules import ItemField, ItemRule
from shared.domain.crawl.spec import LABEL_WORDS, CrawlSpec
from shared.domain.crawl.spec_rules import SpecProblem, checked
from shared.domain.suggestions import SUGGESTED, did_you_mean
from shared.domain.web.url import canonicalize

_S = TypeVar("_S", bound=msgspec.Struct)

_TYPE_NAMES: Final = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "array": "a list",
    "object": "a mapping",
    "null": "nothing",
}
_HINTS: Final = {
    "seeds": "give at least one URL to start from",
    "name": LABEL_WORDS,
    "pool": LABEL_WORDS,
    "take": "text, html, link, or attr:NAME",
    "fields": "names are letters, digits and _, not beginning with a digit, at most 63; 1 to 100 of them; "
    "for example {title: {css: h1}}",
    "items": "for example [{name: article, fields: {title: {css: h1}}}]",
}
_EXAMPLES: Final[dict[type[msgspec.Struct], str]] = {
    ItemRule: "for example {name: article, fields: {title: {css: h1}}}",
    ItemField: "for example {css: h1}",
}


class SpecError(ValueError):
    """Raised for a spec that cannot be used. `problems` has all problems found, in the order of the spec."""

    def __init__(self, problems: tuple[SpecProblem, ...]) -> None:
        super().__init__("; ".join(map(str, problems)))
        self.problems = problems


def parse_spec(data: Mapping[str, Any]) -> CrawlSpec:
    """Return the spec that `data` (plain JSON or YAML values) declares. Raise SpecError with all problems found.

    A seed may be written as its URL alone, and a single seed without a list. Seed URLs become canonical. An empty
    section (`scope:` with nothing below it) gets its defaults.
    """
    problems: list[SpecProblem] = []
    spec = _build(CrawlSpec, _with_plain_seeds(data), "", problems)
    if spec is None or problems:
        raise SpecError(tuple(problems))
    return spec


def _with_plain_seeds(data: object) -> object:
    if not isinstance(data, Mapping) or "seeds" not in data:
        return data
    seeds = data["seeds"]
    if isinstance(seeds, str | Mapping):
        seeds = [seeds]
    return {**data, "seeds": [_plain_seed(seed) for seed in seeds]} if isinstance(seeds, list | tuple) else data


def _plain_seed(seed: object) -> object:
    if isinstance(seed, str):
        seed = {"url": seed}
    if isinstance(seed, Mapping) and isinstance(seed.get("url"), str):
        return {**seed, "url": canonicalize(seed["url"]) or seed["url"]}
    return seed


def _build(cls: type[_S], data: object, path: str, problems: list[SpecProblem]) -> _S | None:
    """Return an instance of `cls` made from `data`. Append the problems found to `problems`.

    - If `data` is no mapping, or a field is unknown, missing or of a wrong type: return None.
    - Otherwise: return the instance, even if the function `checked` finds problems in its values.

    `path`: the place of `data` in the spec.
    """
    if not isinstance(data, Mapping):
        problems.append(SpecProblem(path, f"expected a mapping of fields, got {shown(data)}", _EXAMPLES.get(cls, "")))
        return None
    before = len(problems)
    known = {field.name: field for field in fields(cls)}
    for name in data:
        if name not in known:
            hint = did_you_mean(str(name), known) if len(problems) < SUGGESTED else ""
            problems.append(SpecProblem(_join(path, name), "unknown field", hint))
    values: dict[str, Any] = {}
    for name, field in known.items():
        if name in data:
            value = _value(field, data[name], _join(path, name), problems)
            if value is not msgspec.UNSET:
                values[name] = value
        elif field.required:
            problems.append(SpecProblem(_join(path, name), "is required", _HINTS.get(name, "")))
    if len(problems) > before:
        return None
    built = cls(**values)
    problems.extend(SpecProblem(_join(path, problem.path), problem.message, problem.hint) for problem in checked(built))
    return built


def _value(field: FieldInfo, value: object, path: str, problems: list[SpecProblem]) -> object:
    """Return `value`, converted to the type of the field. Append the problems found to `problems`.

    Return UNSET if the field must get its default, or if there was a problem. `path`: the place of the field in the
    spec.
    """
    inner, container = _section(field.type)
    if inner is not None and container is None:
        built = msgspec.UNSET if value is None else _build(inner, value, path, problems)
        return msgspec.UNSET if built is None else built
    if inner is not None and container is tuple and isinstance(value, list):
        parts = [_build(inner, part, f"{path}[{index}]", problems) for index, part in enumerate(value)]
        if None in parts:
            return msgspec.UNSET
        value = parts
    if inner is not None and container is dict and isinstance(value, Mapping):
        named = {name: _build(inner, part, _join(path, name), problems) for name, part in value.items()}
        if None in named.values():
            return msgspec.UNSET
        value = named
    if isinstance(value, float) and not math.isfinite(value):
        problems.append(SpecProblem(path, f"expected a finite number, got {value}"))
        return msgspec.UNSET
    try:
        made = msgspec.convert(value, field.type)
        if isinstance(made, str):
            made.encode()  # `encode_spec` would raise for a lone surrogate.
        return made
    except UnicodeEncodeError:
        problems.append(SpecProblem(path, f"{shown(value)} has a lone surrogate, which no text has"))
        return msgspec.UNSET
    except msgspec.ValidationError as error:
        problems.append(_problem(str(error), field.type, value, path, suggest=len(problems) < SUGGESTED))
        return msgspec.UNSET


def _section(annotation: Any) -> tuple[type[msgspec.Struct] | None, type | None]:
    """Return the Struct type in a field's annotation, and its container: tuple for a list, dict for a mapping.

    The container is None if the field has the Struct itself. Both are None if the field has no Struct.
    """
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    container = get_origin(annotation) if get_origin(annotation) in (tuple, dict) else None
    if container is not None:
        annotation = get_args(annotation)[1 if container is dict else 0]
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        return annotation, container
    return None, None


def _problem(text: str, annotation: Any, value: object, path: str, *, suggest: bool) -> SpecProblem:
    """Return a validation error of msgspec as a SpecProblem, with a message in plain words.

    - `text`: the message of msgspec.
    - `annotation`: the type of the field.
    - `value`: the wrong value at `path`.
    - `suggest`: for an enum, add the most similar valid value as a hint.
    """
    expected, _, where = text.removesuffix("`").partition(" - at `$")
    if match := re.fullmatch(r"\[(\d+)\]", where):
        path, value = path + where, value[int(match[1])]  # type: ignore[index]  # msgspec found an index, so it is a list
    if expected.startswith("Invalid enum value"):
        choices = [str(member.value) for member in _enum_of(annotation)]
        hint = did_you_mean(str(value), choices) if suggest else ""
        return SpecProblem(path, f"expected one of {', '.join(choices)}, got {shown(value)}", hint)
    if expected.endswith("out of range"):
        return SpecProblem(path, f"expected a number closer to 0, got {shown(value)}")
    form = _HINTS.get(path.rpartition(".")[2], "")
    expected, _, pattern = expected.partition(", got ")[0].partition(" matching regex")
    if pattern and form:
        return SpecProblem(path, f"expected {form}, got {shown(value)}")
    names = re.sub(r"`([^`]*)`", lambda m: " or ".join(_TYPE_NAMES.get(t, t) for t in m[1].split(" | ")), expected)
    return SpecProblem(path, f"{names[:1].lower()}{names[1:]}, got {shown(value)}", form)


def _enum_of(annotation: Any) -> type[Enum]:
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return annotation
    return next(enum for argument in get_args(annotation) if (enum := _enum_of(argument)))


def _join(path: str, name: object) -> str:
    """Return the path of the field `name`. Write a lone surrogate, which UTF-8 cannot encode, as `\\ud800`."""
    text = str(name).encode(errors="backslashreplace").decode()
    return f"{path}.{text}" if path and text else path or text


def shown(value: object) -> str:
    """Return a wrong value as messages show it: its `repr`, cut to 60 characters. Return "nothing" for None."""
    if value is None:
        return "nothing"
    try:
        text = repr(value)
    except ValueError:  # Python writes no whole number with more than 4300 digits. YAML has them as 0xFFF...
        text = "a number with too many digits"
    return text if len(text) <= 60 else text[:57] + "..."
