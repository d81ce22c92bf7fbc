"""Parses YAML files, which may also be JSON. An error is one sentence that names its line and column.

As in YAML 1.2, some values are text even without quotes: `22:00`, `yes`, `no`, `on`, `off`, and times such as
`2030-06-01`. YAML 1.1 reads them as numbers, booleans or times.
"""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from cli.terminal.exits import Usage


def text_of(path: Path, what: str) -> str:
    """Return the text of a file. Raise Usage if it cannot be read or is not UTF-8.

    `what` is the kind of the file for messages, such as "spec".
    """
    try:
        return path.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise Usage(f"{path} is not UTF-8 text (byte {error.start}); is it a {what} file?") from None
    except OSError as error:
        raise Usage(f"cannot read the {what} {path}: {error.strerror}.") from None


def documents(text: str, source: str) -> list[Any]:
    """Return the value of each document in a YAML text. `source` is the text's name in messages, such as its path.

    Raise Usage, with line and column, if the text is not YAML. Raise Usage if its values are nested too deeply.
    """
    # Parsing JSON as JSON is some hundred times as fast.
    try:
        return [json.loads(text, object_pairs_hook=_unrepeated, parse_float=_finite, parse_constant=_finite)]
    except (ValueError, RecursionError):
        pass  # YAML, or faulty: the YAML loader says where
    try:
        return list(yaml.load_all(text, _Loader))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{source}:{mark.line + 1}:{mark.column + 1}" if mark is not None else source
        problem = ", ".join(part for part in (error.context, error.problem) if part)
        raise Usage(f"{place}: this is not YAML: {problem}.") from None
    except yaml.YAMLError as error:
        raise Usage(f"{source}: this is not YAML: {' '.join(str(error).split())}.") from None
    except RecursionError:
        raise Usage(f"{source}: its values are nested too deeply.") from None


def document(text: str, source: str) -> Any:
    """Return the value of the only document in a YAML text. Return None if the text is empty.

    Raise Usage if it is not YAML or has several documents. `source` is the name of the text in messages.
    """
    match documents(text, source):
        case []:
            return None
        case [data]:
            return data
        case several:
            raise Usage(f"{source} has {len(several)} documents; expected one.")


def _unrepeated(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    if len(mapping := dict(pairs)) < len(pairs):
        raise ValueError("a key is repeated")
    return mapping


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{text} is not finite")
    return number


MAX_EXPANDED: Final = 10_000_000
"""A text may have at most `2 * len(text) + MAX_EXPANDED` characters after each alias (`*name`) was replaced by its
value."""


def _expanded(node: yaml.Node, sizes: dict[int, int]) -> int:
    """Return the approximate number of characters that a node has after each alias is replaced by its value.

    `sizes` caches the results, by `id(node)`. Raise ConstructorError if an alias is inside its own anchor.
    """
    known = sizes.get(id(node))
    if known is not None:
        if known < 0:
            raise yaml.constructor.ConstructorError(None, None, "an alias is inside its own anchor", node.start_mark)
        return known
    sizes[id(node)] = -1
    size = 2
    match node:
        case yaml.ScalarNode():
            size += len(node.value)
        case yaml.SequenceNode():
            size += sum(_expanded(each, sizes) for each in node.value)
        case yaml.MappingNode():
            size += sum(_expanded(key, sizes) + _expanded(value, sizes) for key, value in node.value)
    sizes[id(node)] = size
    return size


def _is_text(tag: str, value: str) -> bool:
    """Return True if a value without quotes is text in YAML 1.2. `tag` is the type of the value in YAML 1.1."""
    match tag.rpartition(":")[2]:
        case "int" | "float":
            return ":" in value
        case "bool":
            return value.lower() not in ("true", "false")
        case kind:
            return kind == "timestamp"


class _Loader(yaml.SafeLoader):
    """A YAML loader that rejects repeated keys, and documents whose aliases expand to a too large text."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._length = len(text)

    def resolve(self, kind: type[yaml.Node], value: Any, implicit: Any) -> str:
        tag = str(super().resolve(kind, value, implicit))  # type: ignore[no-untyped-call]  # PyYAML has no types
        return str(self.DEFAULT_SCALAR_TAG) if kind is yaml.ScalarNode and _is_text(tag, value) else tag

    def construct_document(self, node: yaml.Node) -> Any:
        if _expanded(node, {}) > 2 * self._length + MAX_EXPANDED:
            raise yaml.constructor.ConstructorError(
                None,
                None,
                f"its aliases expand to more than {MAX_EXPANDED} characters; shorten the document",
                node.start_mark,
            )
        return super().construct_document(node)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[object] = set()
        for key, _ in node.value:
            name = key.value if isinstance(key, yaml.ScalarNode) else None
            if name is not None and name in seen and key.tag != "tag:yaml.org,2002:merge":
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {name!r} is repeated in this mapping", key.start_mark
                )
            seen.add(name)
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        return mapping
