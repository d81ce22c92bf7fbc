"""What earlier versions wrote is read by today's code, and what today's writes with a field more is read as well:
members of two versions understand each other while a cluster is upgraded. The version before this one and the one after
it are made by the tests."""

from typing import Any

import msgspec
import pytest

from shared.domain.software import VERSION
from tests.support.recording import WAYS, Recording, example, plain, recorded, says_still, structs, within

RECORDED = recorded()
EVERY = [(version, at) for version, recordings in RECORDED.items() for at in range(len(recordings))]
KINDS = {kind.__name__: kind for kind in WAYS}
NEW = "a_field_of_tomorrow"


def of(version: str, at: int) -> tuple[Recording, Any]:
    """A recording, and what reads it."""
    recording = RECORDED[version][at]
    read, _ = WAYS[KINDS[recording.struct]]
    return recording, read


@pytest.mark.parametrize(("version", "at"), EVERY)
def test_what_a_version_wrote_says_today_what_it_said_then(version: str, at: int) -> None:
    recording, read = of(version, at)
    now = read(recording.data)
    assert type(now).__name__ == recording.struct
    assert says_still(recording.says, plain(now)), (recording.says, plain(now))


@pytest.mark.parametrize("kind", WAYS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("full", [False, True], ids=["least", "full"])
def test_a_field_of_a_later_version_is_ignored_wherever_it_stands(kind: type[msgspec.Struct], full: bool) -> None:
    read, write = WAYS[kind]
    today = example(kind, full=full)
    written = write(today)
    codec: Any = msgspec.json if written[:1] == b"{" else msgspec.msgpack
    body = codec.decode(written)
    assert read(codec.encode({**body, NEW: {"deep": [1, None]}})) == read(codec.encode({NEW: 1, **body})) == today


def earlier(kind: type[msgspec.Struct]) -> tuple[type[msgspec.Struct], msgspec.structs.FieldInfo]:
    """Return the struct of a version before this one, which only tests have, and the field that it lacks."""
    *known, added = msgspec.structs.fields(kind)
    config = kind.__struct_config__
    tagged: dict[str, Any] = {} if config.tag is None else {"tag": config.tag, "tag_field": config.tag_field}
    fields = [(field.encode_name, field.type) for field in known]
    return msgspec.defstruct(kind.__name__, fields, array_like=config.array_like, **tagged), added


@pytest.mark.parametrize(
    "kind",
    [kind for kind in WAYS if any(not field.required for field in msgspec.structs.fields(kind))],
    ids=lambda kind: kind.__name__,
)
def test_a_field_that_an_earlier_version_did_not_write_has_its_default(kind: type[msgspec.Struct]) -> None:
    read, write = WAYS[kind]
    today = example(kind, full=True)
    codec: Any = msgspec.json if write(today)[:1] == b"{" else msgspec.msgpack
    before, added = earlier(kind)
    written = codec.encode(before(**{field: getattr(today, field) for field in before.__struct_fields__}))
    default = added.default_factory() if added.default is msgspec.NODEFAULT else added.default
    assert read(written) == msgspec.structs.replace(today, **{added.name: default}) != today


def test_every_struct_that_travels_is_recorded_as_this_version_writes_it() -> None:
    assert VERSION in RECORDED
    seen = {
        part for at, recording in enumerate(RECORDED[VERSION]) for part in within(of(VERSION, at)[1](recording.data))
    }
    missing = sorted(kind.__name__ for kind in structs() - seen)
    assert missing == [], (
        "say in tests.support.recording.WAYS how each is read and written, run `python -m tests.support.recording` and"
        " commit what that writes"
    )


def test_a_recording_that_says_less_or_something_else_is_noticed() -> None:
    was = {"lease": 1, "urls": [{"url": "a"}]}
    assert says_still(was, {"lease": 1, "urls": [{"url": "a", "added": 2}], "added": 1})
    assert not says_still(was, {"lease": 2, "urls": [{"url": "a"}]})
    assert not says_still(was, {"lease": 1, "urls": [{"renamed": "a"}]})
    assert not says_still(was, {"lease": 1, "urls": []})
