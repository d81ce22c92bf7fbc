"""Messages, records and events as each version wrote them, kept in `recorded/<version>.json`, and how they are read.

A cluster is upgraded member by member, and streams hold messages older than any member: every recording is read for
ever.

    .venv/bin/python -m tests.support.recording

adds to the recordings of this version what it has none of; it changes none that is there. A version is recorded once
more, under its own name, when it is released.
"""

import sys
import types
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

import msgspec

from shared import wire
from shared.domain.ops.config import Drains, HotConfig, decode_config, encode_config
from shared.domain.software import VERSION
from shared.domain.web.robots import RobotsRecord
from shared.wire import events, items, messages, robots
from shared.wire.keys import Record, decode_record, encode_record
from shared.wire.messages import Message

FOLDER: Final = Path(__file__).with_name("recorded")
MODULES: Final = tuple(import_module(f"{wire.__name__}.{found.name}") for found in iter_modules(wire.__path__))
"""Everything in shared/wire, where a struct is a promise."""


class Recording(msgspec.Struct, frozen=True):
    """What was written, in hexadecimal digits, by which struct of that version, and what it said (msgspec's plain
    values)."""

    struct: str
    written: str
    says: Any

    @property
    def data(self) -> bytes:
        return bytes.fromhex(self.written)


Reader = Callable[[bytes], Any]
Writer = Callable[[Any], bytes]


def _record(kind: type[Record]) -> tuple[Reader, Writer]:
    return lambda data: decode_record(kind, data), encode_record


def _message(read: Reader) -> tuple[Reader, Writer]:
    return read, messages.encode


WAYS: Final[dict[type[msgspec.Struct], tuple[Reader, Writer]]] = {
    messages.UrlShard: _message(messages.decode_shard),
    messages.Begin: _message(messages.decode_question),
    messages.Extend: _message(messages.decode_question),
    messages.Go: _message(messages.decode_answer),
    messages.Wait: _message(messages.decode_answer),
    messages.Gone: _message(messages.decode_answer),
    messages.Superseded: _message(messages.decode_answer),
    messages.Outcome: _message(messages.decode_report),
    messages.Command: _message(messages.decode_report),
    messages.ShardUnreadable: _message(messages.decode_report),
    messages.Discoveries: _message(messages.decode_discoveries),
    messages.WorkerStatus: _message(messages.decode_status),
    messages.MasterStatus: _message(messages.decode_master_status),
    messages.Progress: _message(messages.decode_progress),
    items.Items: (items.decode_message, msgspec.json.encode),
    events.Event: (events.decode_event, events.encode_event),
    RobotsRecord: (robots.decode_robots, robots.encode_robots),
    HotConfig: (decode_config, encode_config),
    Drains: (lambda data: msgspec.json.decode(data, type=Drains), msgspec.json.encode),
    **{kind: _record(kind) for kind in get_args(Record)},
}
"""How what goes between processes is read and written; inner structs go within these."""


def structs() -> set[type[msgspec.Struct]]:
    """Every struct of shared/wire, and those of the domain that travel. Those of a port stay in a process."""
    found = {
        value
        for module in MODULES
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, msgspec.Struct) and value is not msgspec.Struct
        if not value.__module__.startswith("shared.ports.")
    }
    return found | set(WAYS)


def within(value: object) -> Iterator[type[msgspec.Struct]]:
    """The structs that a value is made of, itself among them."""
    if isinstance(value, msgspec.Struct):
        yield type(value)
        for name in value.__struct_fields__:
            yield from within(getattr(value, name))
    elif isinstance(value, list | tuple):
        for each in value:
            yield from within(each)
    elif isinstance(value, dict):
        for each in value.values():
            yield from within(each)


def plain(value: object) -> Any:
    """What a struct says, as JSON can hold it; without the tag, and with the names that fields are written under."""
    if isinstance(value, msgspec.Struct):
        return {field.encode_name: plain(getattr(value, field.name)) for field in msgspec.structs.fields(value)}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    return bytes(value).hex() if isinstance(value, bytes | msgspec.Raw) else value


def says_still(was: Any, now: Any) -> bool:
    """Return True if all fields of a recording are read now; fields of later versions are ignored."""
    if isinstance(was, dict) and isinstance(now, dict):
        return all(name in now and says_still(value, now[name]) for name, value in was.items())
    if isinstance(was, list) and isinstance(now, list):
        return len(was) == len(now) and all(says_still(*pair) for pair in zip(was, now, strict=True))
    return bool(was == now)


def recorded() -> dict[str, list[Recording]]:
    """The recordings of each version."""
    return {
        path.stem: msgspec.json.decode(path.read_bytes(), type=list[Recording])
        for path in sorted(FOLDER.glob("*.json"))
    }


# --- making them ------------------------------------------------------------------------------------------------------


def example(kind: type[msgspec.Struct], *, full: bool) -> Any:
    """One of a kind: with nothing but what it must have, or with every field said."""
    fields = [field for field in msgspec.structs.fields(kind) if full or field.required]
    return kind(**{field.name: _value(field.type, field.name) for field in fields})


def _value(annotation: Any, name: str) -> Any:
    """A value of a field's type, which no default is."""
    simple = {int: 4711, float: 0.5, str: name, bytes: bytes(range(16)), bool: True, Any: name, type(None): None}
    if annotation in simple:
        return simple[annotation]
    if annotation is msgspec.Raw:
        return msgspec.Raw(b'{"delay":1}')
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        least = next((meta.ge for meta in arguments[1:] if isinstance(meta, msgspec.Meta) and meta.ge), None)
        return type(least)(least) if least is not None else _value(arguments[0], name)
    if origin in (Union, types.UnionType):
        return _value(next(argument for argument in arguments if argument is not type(None)), name)
    if origin is Literal:
        return arguments[0]
    if origin is list:
        return [_value(arguments[0], name)]
    if origin is tuple:
        return tuple(_value(each, name) for each in arguments if each is not Ellipsis)
    if origin is dict:
        return {name: _value(arguments[1], name)}
    return example(annotation, full=True)


def of_this_version() -> list[Recording]:
    """Two of each kind that travels, written by the code as it is."""
    made = []
    for kind, (_, write) in WAYS.items():
        for full in (False, True):
            one: Message | Any = example(kind, full=full)
            recording = Recording(kind.__name__, write(one).hex(), plain(one))
            if recording not in made:
                made.append(recording)
    return made


def main() -> int:
    """Write down what this version has no recording of."""
    path = FOLDER / f"{VERSION}.json"
    there = recorded().get(VERSION, [])
    missing = [each for each in of_this_version() if each not in there]
    path.write_bytes(msgspec.json.format(msgspec.json.encode([*there, *missing]), indent=1) + b"\n")
    print(f"{path.name}: {len(missing)} added, {len(there)} kept", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
