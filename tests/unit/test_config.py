"""The hot configuration: what it makes of a member, and what is read of what was published (pure)."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.domain.ops.config import (
    AS_STARTED,
    Drains,
    HotConfig,
    MasterPart,
    MasterTuning,
    MemberRole,
    StoredConfig,
    WorkerPart,
    WorkerTuning,
    changed_values,
    decode_config,
    encode_config,
    master_tuning,
    worker_tuning,
)
from shared.ports.coordinator import Entry, Snapshot
from shared.wire.desired_state import NOTHING_SAID, DesiredState, config_record, desired_state_after, drains_record
from shared.wire.keys import DRAINS, SETTINGS, ConfigRecord, Keys, encode_record

KEYS = Keys("test")
WORKER = WorkerTuning(max_visits=64, report_s=2.0, log_level="info")
MASTER = MasterTuning(grant_s=30.0)


def worker(config: HotConfig, pool: str = "default") -> WorkerTuning:
    return worker_tuning(pool, config, WORKER)


def snapshot(**values: bytes) -> Snapshot:
    entries = {KEYS.setting(name): Entry(KEYS.setting(name), value, 3, 3) for name, value in values.items()}
    return Snapshot(entries, 3, 3)


# --- what a member makes of it ----------------------------------------------------------------------------------------


def test_a_document_that_says_nothing_leaves_every_member_as_it_was_started() -> None:
    assert worker(AS_STARTED) == WORKER
    assert master_tuning(AS_STARTED, MASTER) == MASTER


def test_a_pool_lies_over_all_workers_and_these_over_the_start() -> None:
    config = HotConfig(
        worker=WorkerPart(max_visits=8, report_s=1.0), pools={"eu": WorkerPart(max_visits=4)}, log_level="debug"
    )
    assert worker(config, "eu") == WorkerTuning(4, 1.0, "debug")
    assert worker(config, "us") == WorkerTuning(8, 1.0, "debug")
    assert worker(HotConfig(pools={"eu": WorkerPart(report_s=0.5)}), "eu") == WorkerTuning(64, 0.5, "info")


def test_masters_take_what_is_said_and_keep_the_rest() -> None:
    config = HotConfig(log_level="error", master=MasterPart(grant_s=5.0, dispatch_ahead_ratio=0.0, report_batch_size=7))
    tuning = master_tuning(config, MASTER)
    assert (tuning.grant_s, tuning.dispatch_ahead_ratio, tuning.report_batch_size, tuning.log_level) == (
        5.0,
        0.0,
        7,
        "error",
    )
    assert changed_values(MASTER, tuning) == {
        "grant_s": "30.0 -> 5.0",
        "dispatch_ahead_ratio": "2.0 -> 0.0",
        "report_batch_size": "256 -> 7",
        "log_level": "info -> error",
    }


def test_grants_are_never_longer_than_a_new_owner_takes_them_for() -> None:
    """A new owner waits for grants of before as long as it was itself started to give them."""
    assert master_tuning(HotConfig(master=MasterPart(grant_s=300.0)), MASTER).grant_s == MASTER.grant_s


def test_taking_a_value_back_gives_the_start_up_value_again() -> None:
    turned = worker(HotConfig(worker=WorkerPart(max_visits=1)))
    assert changed_values(turned, worker(AS_STARTED)) == {"max_visits": "1 -> 64"}
    assert changed_values(turned, turned) == {}


def test_every_value_of_a_document_is_one_of_a_member() -> None:
    """What is said and applied by nobody would be a lie."""
    assert set(MasterPart.__struct_fields__) <= set(MasterTuning.__slots__)
    assert set(WorkerPart.__struct_fields__) <= set(WorkerTuning.__slots__)


@pytest.mark.parametrize(
    "document",
    [
        b'{"worker":{"max_visits":0}}',
        b'{"worker":{"max_visits":1.5}}',
        b'{"worker":{"report_s":0}}',
        b'{"master":{"grant_s":0.5}}',
        b'{"master":{"dispatch_ahead_ratio":2.1}}',
        b'{"master":{"seed_upload_refusal_ratio":1}}',
        b'{"log_level":"loud"}',
        b'{"pools":{"No Pool":{}}}',
        b"[]",
    ],
)
def test_a_document_beyond_its_bounds_is_no_document(document: bytes) -> None:
    with pytest.raises(msgspec.MsgspecError):
        decode_config(document)


parts = st.builds(
    WorkerPart, max_visits=st.none() | st.integers(1, 100_000), report_s=st.none() | st.floats(0.01, 60.0)
)
configs = st.builds(
    HotConfig,
    log_level=st.none() | st.sampled_from(["debug", "info", "warning", "error"]),
    worker=parts,
    pools=st.dictionaries(st.from_regex(r"[a-z0-9]{1,8}", fullmatch=True), parts, max_size=3),
    master=st.builds(
        MasterPart, grant_s=st.none() | st.floats(1.0, 3600.0), report_batch_size=st.none() | st.integers(1, 4096)
    ),
)


@given(configs)
def test_a_document_comes_back_as_it_was_written(config: HotConfig) -> None:
    assert decode_config(encode_config(config)) == config


@given(configs)
def test_whatever_is_said_a_worker_can_do_it(config: HotConfig) -> None:
    started = WorkerTuning(1, 2.0, "info")
    for pool in ("default", *config.pools):
        tuning = worker_tuning(pool, config, started)
        assert 1 <= tuning.max_visits <= 100_000
        assert 0.01 <= tuning.report_s <= 60.0


# --- what was published -----------------------------------------------------------------------------------------------


def test_what_the_leader_writes_is_what_members_read() -> None:
    stored = StoredConfig(4, HotConfig(worker=WorkerPart(max_visits=8)), 17, "ops")
    drains = Drains(masters=("m1",), workers=("w1", "w2"))
    found = desired_state_after(
        NOTHING_SAID, snapshot(settings=config_record(stored), drains=drains_record(drains)), KEYS
    )
    assert found == (DesiredState(stored, drains), [])
    assert (drains.of(MemberRole.MASTER), drains.of(MemberRole.WORKER)) == (("m1",), ("w1", "w2"))
    assert {SETTINGS, DRAINS} == {"settings", "drains"}


def test_a_coordinator_that_lost_everything_turns_nothing_back() -> None:
    before = DesiredState(StoredConfig(4, HotConfig(log_level="debug")), Drains(workers=("w1",)))
    assert desired_state_after(before, Snapshot({}, 1, 1, history=2), KEYS) == (before, [])


@pytest.mark.parametrize("value", [b"", b"{", b"[]", b'{"value":{"worker":{"max_visits":"many"}}}', b'{"value":7}'])
def test_unreadable_config_is_logged_and_last_one_kept(value: bytes) -> None:
    before = DesiredState(StoredConfig(4, HotConfig(log_level="debug")), Drains())
    drains = Drains(workers=("w1",))
    wanted, (complaint,) = desired_state_after(before, snapshot(settings=value, drains=drains_record(drains)), KEYS)
    assert wanted == DesiredState(before.config, drains), "the other record is read all the same"
    assert "configuration" in complaint


@pytest.mark.parametrize("value", [b"", b'{"value":7}', b'{"value":{"workers":"w1"}}'])
def test_drains_that_cannot_be_read_are_complained_of_and_the_last_ones_stay(value: bytes) -> None:
    before = DesiredState(NOTHING_SAID.config, Drains(workers=("w1",)))
    wanted, (complaint,) = desired_state_after(before, snapshot(drains=value), KEYS)
    assert wanted == before
    assert "drains" in complaint


def test_a_document_of_a_newer_leader_is_followed_as_far_as_it_is_known() -> None:
    document = msgspec.Raw(b'{"worker":{"max_visits":8,"appetite":3},"kitchen":{}}')
    record = encode_record(ConfigRecord(document, revision=9))
    wanted, complaints = desired_state_after(NOTHING_SAID, snapshot(settings=record), KEYS)
    assert (wanted.config.revision, wanted.config.config) == (9, HotConfig(worker=WorkerPart(max_visits=8)))
    assert complaints == []
