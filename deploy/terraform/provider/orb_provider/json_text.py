"""JSON in an attribute, written byte for byte as Terraform's `jsonencode` writes it.

With other spaces or escapes, an imported resource would differ from its configuration although both mean the same.
"""

import json
from decimal import Decimal
from typing import Any, Final

_ESCAPED: Final = {ord(char): f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"}


def encode(value: Any) -> str:
    """Return a value as JSON: sorted keys, no spaces, numbers without exponents, and `<`, `>` and `&` escaped."""
    match value:
        case dict():
            return "{" + ",".join(f"{_quoted(key)}:{encode(value[key])}" for key in sorted(value)) + "}"
        case list() | tuple():
            return "[" + ",".join(map(encode, value)) + "]"
        case str():
            return _quoted(value)
        case float():
            return _number(value)
        case _:
            return json.dumps(value)


def decode(text: str) -> Any:
    """Return the value of a JSON text. Raise ValueError, with line and column, if it is not JSON."""
    try:
        return json.loads(text, parse_constant=_refused)
    except json.JSONDecodeError as error:
        raise ValueError(f"{error.msg} at line {error.lineno}, column {error.colno}") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def same(one: str, other: str) -> bool:
    """Return True if the texts are equal, or are JSON of equal values."""
    try:
        return one == other or encode(decode(one)) == encode(decode(other))
    except ValueError:
        return False


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).translate(_ESCAPED)


def _number(value: float) -> str:
    return str(int(value)) if value.is_integer() else format(Decimal(repr(value)), "f")


def _refused(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON")
