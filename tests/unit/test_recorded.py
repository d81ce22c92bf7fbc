"""What earlier versions wrote is read by today's code, and what today's writes with a field more is read as well:
members of two versions understand each other while a cluster is upgraded."""

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
