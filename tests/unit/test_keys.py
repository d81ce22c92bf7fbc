"""The keys and records of a cluster: what one process writes another one reads, of whatever version."""

import contextlib
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.domain.ids import CrawlId, Partition, term_of
from shared.ports.coordinator import Entry
from shared.wire import desired_state
from shared.wire.keys import (
    ConfigRecord,
    CrawlRecord,
    EpochRecord,
    Keys,
    LeaderRecord,
    MemberRecord,
    PartitionRecord,
    Record,
    decode_record,
    encode_record,
)
from shared.wire.messages import Malformed

KEYS = Keys("prod-1")

SAMPLES: dict[str, tuple[Record, str]] = {
    "leader": (LeaderRecord("m1", "http://10.0.0.1:8080"), '{"id":"m1","address":"http://10.0.0.1:8080"}'),
    "master": (
        MemberRecord("m1", "1.0", 1_700_000_000_000, address="http://10.0.0.1:8080"),
        '{"id":"m1","version":"1.0","started_at_ms":1700000000000,"address":"http://10.0.0.1:8080"}',
    ),
    "worker": (
        MemberRecord("w1", "1.0", 1_700_000_000_000, pool="eu", capacity=64, draining=True),
        '{"id":"w1","version":"1.0","started_at_ms":1700000000000,"pool":"eu","capacity":64,"draining":true}',
    ),
    "partition": (PartitionRecord("m1", 3, 9), '{"owner":"m1","epoch":3,"started_at_ms":9}'),
    "epoch": (EpochRecord(3), '{"epoch":3}'),
    "crawl": (
        CrawlRecord(2, 64, msgspec.Raw(b'{"name":"docs"}'), paused=True),
        '{"revision":2,"partitions":64,"spec":{"name":"docs"},"paused":true}',
    ),
    "gone crawl": (
        CrawlRecord(2, 64, msgspec.Raw(b"{}"), gone=True),
        '{"revision":2,"partitions":64,"spec":{},"gone":true}',
    ),
    "setting": (
        ConfigRecord(msgspec.Raw(b"0.5"), 1_700_000_000_000, "admin"),
        '{"value":0.5,"changed_at_ms":1700000000000,"changed_by":"admin"}',
    ),
    "settings": (
        ConfigRecord(msgspec.Raw(b'{"worker":{"max_visits":8}}'), 1_700_000_000_000, "admin", 4),
        '{"value":{"worker":{"max_visits":8}},"changed_at_ms":1700000000000,"changed_by":"admin","revision":4}',
    ),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_records_are_read_for_ever_as_they_were_written(name: str) -> None:
    """Add samples, never change one."""
    record, text = SAMPLES[name]
    assert encode_record(record).decode() == text
    assert decode_record(type(record), text.encode()) == record


@pytest.mark.parametrize("name", SAMPLES)
def test_what_a_newer_peer_adds_is_ignored(name: str) -> None:
    record, text = SAMPLES[name]
    newer = text.removesuffix("}") + ',"added":{"later":[1]}}'
    assert decode_record(type(record), newer.encode()) == record


@given(st.sampled_from(sorted(SAMPLES)), st.binary(max_size=40) | st.text(max_size=40).map(str.encode))
def test_whatever_stands_in_a_key_is_a_record_or_malformed(name: str, value: bytes) -> None:
    kind = type(SAMPLES[name][0])
    with contextlib.suppress(Malformed):
        assert isinstance(decode_record(kind, value), kind)


@pytest.mark.parametrize("name", SAMPLES)
def test_record_with_deeply_nested_field_is_malformed(name: str) -> None:
    value = SAMPLES[name][1].removesuffix("}") + ',"later":' + "[" * 100_000 + "]" * 100_000 + "}"
    with pytest.raises(Malformed):
        decode_record(type(SAMPLES[name][0]), value.encode())


@pytest.mark.parametrize("decode", [desired_state.config_of, desired_state.drains_of])
def test_deeply_nested_part_of_desired_state_is_malformed(
    monkeypatch: pytest.MonkeyPatch, decode: Callable[[Entry], object]
) -> None:
    """The record may be decoded where more of the stack is left."""
    record = ConfigRecord(msgspec.Raw(b'{"later":' + b"[" * 100_000 + b"]" * 100_000 + b"}"))
    monkeypatch.setattr(desired_state, "decode_record", lambda *_: record)
    with pytest.raises(Malformed):
        decode(Entry("k", b"", 1, 1))


def test_every_key_has_its_place() -> None:
    assert (KEYS.leader, KEYS.epoch) == ("/orb/prod-1/leader", "/orb/prod-1/epoch")
    assert KEYS.master("m1") == "/orb/prod-1/masters/m1"
    assert KEYS.worker("w.1") == "/orb/prod-1/workers/w.1"
    assert KEYS.partition(Partition(63)) == "/orb/prod-1/partitions/63"
    assert KEYS.crawl(CrawlId(7)) == "/orb/prod-1/crawls/7"
    assert KEYS.setting("fetch.timeout_s") == "/orb/prod-1/config/fetch.timeout_s"


@pytest.mark.parametrize(
    ("read", "key", "meant"),
    [
        (KEYS.master_of, KEYS.master("m1"), "m1"),
        (KEYS.worker_of, KEYS.worker("w-1"), "w-1"),
        (KEYS.partition_of, KEYS.partition(Partition(0)), 0),
        (KEYS.crawl_of, KEYS.crawl(CrawlId(12)), 12),
        (KEYS.master_of, KEYS.worker("w1"), None),
        (KEYS.master_of, KEYS.masters, None),
        (KEYS.master_of, KEYS.masters + "m1/x", None),
        (KEYS.master_of, "/orb/other/masters/m1", None),
        (KEYS.partition_of, KEYS.partitions + "07", None),
        (KEYS.partition_of, KEYS.partitions + "-1", None),
        (KEYS.partition_of, KEYS.partitions + "x", None),
        (KEYS.crawl_of, KEYS.crawls + "\N{ARABIC-INDIC DIGIT ONE}", None),
        (KEYS.crawl_of, KEYS.leader, None),
    ],
)
def test_a_key_is_read_back_or_is_a_strangers(read: Callable[[str], object], key: str, meant: object) -> None:
    assert read(key) == meant


@pytest.mark.parametrize("name", ["", "a/b", "-a", "a.", "ü", "a b", "a" * 65, "..", "a\n"])
def test_names_that_could_be_taken_for_another_key_are_refused(name: str) -> None:
    for make in (KEYS.master, KEYS.worker, KEYS.setting, Keys):
        with pytest.raises(ValueError, match="is no name"):
            make(name)


def test_an_owners_term_orders_by_epoch_then_by_the_records_revision() -> None:
    record = PartitionRecord("m1", 3, 9)
    assert record.term(70) == term_of(3, 70)
    assert record.term(70) < record.term(71) < PartitionRecord("m2", 4, 9).term(1)
