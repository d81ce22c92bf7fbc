"""What a person wrote as YAML (JSON is YAML): the data, or one sentence that says what is wrong and where."""

from pathlib import Path
from typing import Any

import yaml

from cli.exits import Usage


def text_of(path: Path, what: str) -> str:
    """The text of the file, which is `what` ("spec"). Usage where it cannot be read."""
    try:
        return path.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise Usage(f"{path} is not UTF-8 text (byte {error.start}); is it a {what} file?") from None
    except OSError as error:
        raise Usage(f"cannot read the {what} {path}: {error.strerror}.") from None


def documents(text: str, source: str) -> list[Any]:
    """Every document of the text. Usage that names `source`, line and column where it is not YAML."""
    try:
        return list(yaml.load_all(text, _Loader))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{source}:{mark.line + 1}:{mark.column + 1}" if mark is not None else source
        said = ", ".join(part for part in (error.context, error.problem) if part)
        raise Usage(f"{place}: this is not YAML: {said}.") from None
    except yaml.YAMLError as error:
        raise Usage(f"{source}: this is not YAML: {' '.join(str(error).split())}.") from None


def document(text: str, source: str) -> Any:
    """The one document of the text; None where it is empty. Usage where there are several."""
    match documents(text, source):
        case []:
            return None
        case [data]:
            return data
        case several:
            raise Usage(f"{source} holds {len(several)} documents and not one.")


class _Loader(yaml.SafeLoader):
    """Refuses a key that stands twice in one mapping, where YAML would quietly take the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[object] = set()
        for key, _ in node.value:
            name = key.value if isinstance(key, yaml.ScalarNode) else None
            if name is not None and name in seen and key.tag != "tag:yaml.org,2002:merge":
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {name!r} stands here twice", key.start_mark
                )
            seen.add(name)
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        return mapping
