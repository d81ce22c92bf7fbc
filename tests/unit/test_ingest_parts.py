"""What is applied in one transaction is bounded by its size, so that an upload holds no other writer up for long."""

from hypothesis import given
from hypothesis import strategies as st

from api.frontier.dead_letters import _EVIDENCE_CHARS, letter_of
from api.frontier.ingest import parts
from shared.ports.broker import Delivered


def reports(sizes: list[int]) -> list[Delivered]:
    return [Delivered(n, n, bytes(size)) for n, size in enumerate(sizes, 1)]


@given(st.lists(st.integers(0, 30), max_size=40), st.integers(1, 50))
def test_parts_are_the_reports_in_their_order_each_as_large_as_it_may_be(sizes: list[int], max_count: int) -> None:
    whole = reports(sizes)
    cut = list(parts(whole, max_count))
    assert [report for part in cut for report in part] == whole
    assert all(cut)
    held = [sum(len(report.data) for report in part) for part in cut]
    assert all(size <= max_count or len(part) == 1 for size, part in zip(held, cut, strict=True))
    following = [len(part[0].data) for part in cut[1:]]
    assert all(size + more > max_count for size, more in zip(held, following, strict=False))


def test_a_report_that_is_larger_by_itself_is_applied_alone() -> None:
    assert [len(part) for part in parts(reports([1, 99, 1, 1]), 10)] == [1, 1, 2]


def test_the_evidence_of_a_dead_letter_is_cut_and_its_payload_is_kept_whole() -> None:
    report = Delivered(1, 7_000_000, b"\xff" * 5000)
    letter = letter_of("outcome", report, "x" * 5000)
    assert (letter.evidence, letter.payload, letter.at_ms) == ("x" * _EVIDENCE_CHARS, report.data, 7)
