"""Parses YAML files, which may also be JSON. An error is one sentence that names its line and column.

A value that JSON cannot have, such as `.inf`, is an error, because values are sent to masters as JSON.

As in YAML 1.2, some values are text even without quotes: `22:00`, `yes`, `no`, `on`, `off`, and times such as
`2030-06-01`. YAML 1.1 reads them as numbers, booleans or times.
"""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
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
        data = json.loads(text, object_pairs_hook=_unrepeated, parse_float=_finite, parse_constant=_finite)
        msgspec.json.encode(data)  # fails if a text has half of a surrogate pair
        return [data]
    except (ValueError, RecursionError):
        pass  # YAML, or faulty: the YAML loader says where
    try:
        return _loaded(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{source}:{mark.line + 1}:{mark.column + 1}" if mark is not None else source
        problem = ", ".join(part for part in (error.context, error.problem) if part)
        raise Usage(f"{place}: this is not YAML: {problem}.") from None
    except yaml.YAMLError as error:
        raise Usage(f"{source}: this is not YAML: {' '.join(str(error).split())}.") from None
    except RecursionError:
        raise Usage(f"{source}: its values are nested too deeply.") from None


def _loaded(text: str) -> list[Any]:
    """Return the value of each document in a YAML text. Raise YAMLError or RecursionError if there is an error."""
    loader, values = _Loader(text), []
    try:
        while loader.check_data():  # type: ignore[no-untyped-call]  # PyYAML has no types
            values.append(loader.get_data())
        return values
    except (OverflowError, ValueError):  # PyYAML does not check `\Uffffffff`, or the length of `%YAML 1.999...`
        raise yaml.scanner.ScannerError(None, None, "a number or escape is out of range", loader.get_mark()) from None
    finally:
        loader.dispose()


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


_SHOWN_CHARS: Final = 40

MAX_EXPANDED: Final = 10_000_000
"""A text may have at most `2 * len(text) + MAX_EXPANDED` characters after each alias (`*name`) was replaced by its
value."""


def _expanded(node: yaml.Node, sizes: dict[int, int]) -> int:
    """Return the approximate number of characters that a node has after each alias is replaced by its value.

    `sizes` caches the results, by `id(node)`. Raise ConstructorError if an alias is inside its own anchor, or if a
    mapping has a key that it may not have.
    """
    known = sizes.get(id(node))
    if known is not None:
        if known < 0:
            raise _error(node, "an alias is inside its own anchor")
        return known
    sizes[id(node)] = -1
    size = 2
    match node:
        case yaml.ScalarNode():
            size += len(node.value)
        case yaml.SequenceNode():
            size += sum(_expanded(each, sizes) for each in node.value)
        case yaml.MappingNode():
            _check_keys(node)
            size += sum(_expanded(key, sizes) + _expanded(value, sizes) for key, value in node.value)
    sizes[id(node)] = size
    return size


def _check_keys(mapping: yaml.MappingNode) -> None:
    """Raise ConstructorError if a key is repeated, or is neither text nor a number.

    Call it before values are constructed. PyYAML then copies the keys of merged mappings (`<<`) into the mapping, where
    they may repeat its own keys.
    """
    seen: set[str] = set()
    for key, _ in mapping.value:
        if not isinstance(key, yaml.ScalarNode):
            continue  # the constructor rejects it
        kind = key.tag.rpartition(":")[2]
        if kind not in ("str", "int", "float", "merge", "value"):
            raise _error(key, f"the key {_shown(key)} is not text: put it in quotes")
        if key.value in seen and kind != "merge":
            raise _error(key, f"the key {_shown(key)} is repeated in this mapping")
        seen.add(key.value)


def _shown(node: yaml.Node) -> str:
    """Return the text of a node for a message, in quotes and shortened. Return `this` if it is no single value."""
    if not isinstance(node, yaml.ScalarNode):
        return "this"
    return repr(node.value if len(node.value) <= _SHOWN_CHARS else f"{node.value[: _SHOWN_CHARS - 1]}…")


def _error(node: yaml.Node, problem: str) -> yaml.constructor.ConstructorError:
    return yaml.constructor.ConstructorError(None, None, problem, node.start_mark)


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
    """A YAML loader that rejects what a request cannot have, and documents whose aliases expand to a too large text.

    It rejects repeated keys, keys such as `null`, numbers that are not finite, and halves of surrogate pairs.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._length = len(text)

    def resolve(self, kind: type[yaml.Node], value: Any, implicit: Any) -> str:
        tag = str(super().resolve(kind, value, implicit))  # type: ignore[no-untyped-call]  # PyYAML has no types
        return str(self.DEFAULT_SCALAR_TAG) if kind is yaml.ScalarNode and _is_text(tag, value) else tag

    def construct_document(self, node: yaml.Node) -> Any:
        if _expanded(node, {}) > 2 * self._length + MAX_EXPANDED:
            raise _error(node, f"its aliases expand to more than {MAX_EXPANDED} characters; shorten the document")
        return super().construct_document(node)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            value = super().construct_object(node, deep)
            if isinstance(value, int):
                str(value)  # fails for more digits than Python converts
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            # PyYAML does not check the form of a value.
            kind = node.tag.rpartition(":")[2]
            raise _error(node, f"{_shown(node)} is not a valid {kind}; put text in quotes") from None
        if isinstance(value, float) and not math.isfinite(value):
            raise _error(node, f"{_shown(node)} is not a finite number; put text in quotes")
        return value

    def construct_scalar(self, node: yaml.ScalarNode | yaml.MappingNode) -> Any:
        value = super().construct_scalar(node)
        try:
            value.encode()
            return value
        except UnicodeEncodeError:
            pass  # JSON writes a character as a surrogate pair, which PyYAML does not join
        try:
            return value.encode("utf-16", "surrogatepass").decode("utf-16")
        except UnicodeDecodeError:
            raise _error(node, "this text has half of a surrogate pair, which is no character") from None
