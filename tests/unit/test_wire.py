"""Messages survive the wire, other versions of themselves, and whatever else may arrive in their place."""

from collections.abc import Callable
from typing import Any, get_args, get_origin

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shared.domain.frontier.seed_contexts import SeedContext
from shared.domain.ids import Partition
from shared.domain.ops.watermarks import Pressure
from shared.wire import messages, subjects
from shared.wire.messages import (
    Begin,
    Command,
    Discoveries,
    Extend,
    Go,
    Gone,
    HostNote,
    HostProgress,
    HostWaiting,
    LeftOut,
    Link,
    Malformed,
    MasterStatus,
    Message,
    Origin,
    Outcome,
    Progress,
    Record,
    ShardUnreadable,
    ShardUrl,
    Superseded,
    UrlOutcome,
    UrlShard,
    Wait,
    WorkerStatus,
    decode_answer,
    decode_discoveries,
    decode_master_status,
    decode_progress,
    decode_question,
    decode_report,
    decode_shard,
    decode_status,
    encode,
)
from tests.support import recording

Decoder = Callable[[bytes], Message]

DECODERS: dict[type[msgspec.Struct], Decoder] = {
    UrlShard: decode_shard,
    Begin: decode_question,
    Extend: decode_question,
    Go: decode_answer,
    Wait: decode_answer,
    Gone: decode_answer,
    Superseded: decode_answer,
    Outcome: decode_report,
    Command: decode_report,
    ShardUnreadable: decode_report,
    Discoveries: decode_discoveries,
    WorkerStatus: decode_status,
    MasterStatus: decode_master_status,
    Progress: decode_progress,
}
EVERY_DECODER = sorted(set(DECODERS.values()), key=lambda decoder: decoder.__name__)
INNER: tuple[type[msgspec.Struct], ...] = (
    ShardUrl,
    Record,
    LeftOut,
    UrlOutcome,
    HostNote,
    Link,
    Origin,
    HostProgress,
    HostWaiting,
    Pressure,
    SeedContext,
)

# msgpack integers end at 64 bits; a lone surrogate is no text.
integers = st.integers(-(2**63), 2**63 - 1)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
values = st.recursive(
    st.none() | st.booleans() | integers | texts | st.binary(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)


def structs(struct_type: type[msgspec.Struct]) -> st.SearchStrategy[Any]:
    """Any value of a struct type, by its annotations."""
    fields = msgspec.structs.fields(struct_type)
    return st.builds(struct_type, **{field.name: typed(field.type) for field in fields})


def typed(annotation: Any) -> st.SearchStrategy[Any]:
    """Any value of a field's type."""
    simple: dict[Any, st.SearchStrategy[Any]] = {
        int: integers,
        str: texts,
        bytes: st.binary(max_size=20),
        bool: st.booleans(),
        type(None): st.none(),
        Any: values,
    }
    if annotation in simple:
        return simple[annotation]
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is list:
        return st.lists(typed(arguments[0]), max_size=3)
    if origin is tuple and arguments[1:] == (...,):
        return st.lists(typed(arguments[0]), max_size=3).map(tuple)
    if origin is tuple:
        return st.tuples(*map(typed, arguments))
    if origin is dict:
        return st.dictionaries(texts, typed(arguments[1]), max_size=3)
    return st.one_of([typed(argument) for argument in arguments]) if arguments else structs(annotation)


any_message: st.SearchStrategy[Message] = st.one_of([structs(struct_type) for struct_type in DECODERS])


@given(any_message)
def test_a_message_comes_back_as_it_was_sent(message: Message) -> None:
    assert DECODERS[type(message)](encode(message)) == message


@given(any_message, st.dictionaries(texts.filter(lambda name: name.startswith("new")), values, max_size=3))
@example(Gone(), {"new": {"deep": [1]}})
def test_fields_of_a_newer_peer_are_ignored(message: Message, new: dict[str, Any]) -> None:
    body = msgspec.msgpack.decode(encode(message))
    assert DECODERS[type(message)](msgspec.msgpack.encode({**new, **body})) == message


@given(st.data())
@pytest.mark.parametrize("inner", INNER, ids=lambda inner: inner.__name__)
def test_an_inner_struct_may_get_a_field_at_its_end(inner: type[msgspec.Struct], data: st.DataObject) -> None:
    """Old readers drop what a newer peer appended; new readers take the default for what an older peer left out."""
    fields = [(field.name, field.type, field) for field in msgspec.structs.fields(inner)]
    newer = msgspec.defstruct(
        f"Newer{inner.__name__}",
        [
            *((name, kind) if field.required else (name, kind, _default(field)) for name, kind, field in fields),
            ("appended", str, "default"),
        ],
        frozen=True,
        array_like=True,
    )
    old = data.draw(structs(inner))
    same = {name: getattr(old, name) for name, _, _ in fields}
    upgraded = msgspec.msgpack.decode(msgspec.msgpack.encode(old), type=newer)
    assert upgraded == newer(**same, appended="default")
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(newer(**same, appended="x")), type=inner) == old


def _default(field: msgspec.structs.FieldInfo) -> Any:
    if field.default is not msgspec.NODEFAULT:
        return field.default
    return msgspec.field(default_factory=field.default_factory)


@given(st.binary(max_size=64))
@example(b"")
@example(b"\xdd\xff\xff\xff\xff")
@example(b"\x82\xa1z" + b"\x91" * 100_000)
@pytest.mark.parametrize("decode", EVERY_DECODER, ids=lambda decode: decode.__name__)
def test_any_bytes_are_a_message_or_malformed(decode: Decoder, data: bytes) -> None:
    judge(decode, data)


@given(any_message, st.data())
def test_a_damaged_message_is_a_message_or_malformed(message: Message, data: st.DataObject) -> None:
    """A byte changed, cut off, or put in: text that is no UTF-8, lengths that lie, other types."""
    body = bytearray(encode(message))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, max(len(body) - 1, 0)))
        match data.draw(st.sampled_from(["set", "cut", "insert"])):
            case "set" if body:
                body[at] = data.draw(st.integers(0, 255))
            case "cut":
                del body[at:]
            case _:
                body.insert(at, data.draw(st.integers(0, 255)))
    judge(DECODERS[type(message)], bytes(body))


@pytest.mark.parametrize(
    "args", [b"\x91" * 100_000, b"\x81" * 100_000, b"\xa1\xff", b"\xdd\xff\xff\xff\xff", b"\x81\x80\x01"]
)
def test_hostile_arguments_of_a_command_are_malformed(args: bytes) -> None:
    body = encode(Command(id="c", crawl=1, kind="k", args={"x": 1}))
    with pytest.raises(Malformed):
        decode_report(body.removesuffix(b"\x01") + args)


@pytest.mark.parametrize("decode", EVERY_DECODER, ids=lambda decode: decode.__name__)
def test_a_decoder_takes_no_message_of_another_kind_or_version(decode: Decoder) -> None:
    for kind, other in DECODERS.items():
        if other is not decode:
            with pytest.raises(Malformed):
                decode(encode(recording.example(kind, full=True)))
    with pytest.raises(Malformed):
        decode(msgspec.msgpack.encode({"type": "shard/999"}))


def judge(decode: Decoder, data: bytes) -> None:
    """It is decoded, and then is a message that can be sent on, or it is Malformed; nothing else."""
    try:
        message = decode(data)
    except Malformed:
        return
    assert isinstance(message, tuple(DECODERS))


# --- names ------------------------------------------------------------------------------------------------------------


def test_these_tests_know_every_message_and_every_inner_struct() -> None:
    assert set(DECODERS) == set(messages.Message.__args__)
    of_module = {s for s in vars(messages).values() if isinstance(s, type) and issubclass(s, msgspec.Struct)}
    assert of_module - {msgspec.Struct} == {*DECODERS, *INNER}


def test_every_message_carries_its_type_and_version() -> None:
    for struct_type in DECODERS:
        tag = struct_type.__struct_config__.tag
        assert isinstance(tag, str)
        assert tag.rsplit("/", 1)[1].isdigit()


# --- subjects ---------------------------------------------------------------------------------------------------------


def test_subjects_are_what_streams_and_operators_know_them_by() -> None:
    """Stored messages lie under these names: they never change."""
    p = Partition(12)
    assert subjects.visit("eu", p, 40972, 3) == "visits.eu.12.40972.3"
    assert subjects.visits_stream("eu") == "VISITS_eu"
    assert subjects.visits_filter("eu") == "visits.eu.>"
    assert subjects.report(p, "outcome") == "reports.12.outcome"
    assert subjects.report(p, "discovery") == "reports.12.discovery"
    assert subjects.owner(p) == "owner.12"
    assert subjects.REPORT_SUBJECTS == ("reports.*.outcome", "reports.*.discovery")
