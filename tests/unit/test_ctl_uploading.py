"""Uploads of seeds: every line is sent until it is durable, at constant memory, and the same pieces always."""

import argparse
import gzip
import io
import json
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from cli.ctl.command import carried_out, configure
from cli.ctl.output import CtlOutput
from cli.ctl.problems import Refusal
from cli.ctl.upload import Upload, lines_of, pieces_of
from cli.ctl.verb_context import VerbContext
from cli.terminal.exits import Usage
from tests.support.api.scripted_masters import Masters, problem

AT = "/v1/crawls/docs/seeds"


def received(request: httpx.Request) -> list[bytes]:
    assert request.headers["content-encoding"] == "gzip"
    return gzip.decompress(request.content).split(b"\n")


def accepted(request: httpx.Request, rejected: int = 0) -> httpx.Response:
    count = len(received(request))
    first = [{"line": 1, "url": "x", "reason": "no URL"}] * rejected
    return httpx.Response(
        200,
        json={"lines": count, "accepted": count - rejected, "duplicate": 0, "rejected": rejected,
              "durable_lines": count, "first_rejected": first},
    )  # fmt: skip


def lines(count: int) -> list[bytes]:
    return [b"http://h.test/%d" % n for n in range(count)]


def test_pieces_hold_every_line_once_in_order_and_are_always_the_same() -> None:
    found = list(pieces_of(iter(lines(1000)), 500))
    assert [line for piece in found for line in piece] == lines(1000)
    assert max(sum(map(len, piece)) + len(piece) for piece in found) <= 500
    assert found == list(pieces_of(iter(lines(1000)), 500))
    assert list(pieces_of(iter([b"x" * 900]), 500)) == [[b"x" * 900]]


def test_each_piece_goes_under_a_key_of_its_own_and_lines_count_through() -> None:
    masters = Masters(lambda request: accepted(request, rejected=1))
    upload = Upload(masters.client(), AT, "nightly")
    for piece in pieces_of(iter(lines(100)), 500):
        upload.send(piece)
    keys = [each.headers["idempotency-key"] for each in masters.asked]
    assert keys == [f"nightly-{n}.1" for n in range(1, len(keys) + 1)]
    total = upload.total
    assert (total.lines, total.accepted, total.rejected) == (100, 100 - len(keys), len(keys))
    begins = [1]
    for each in masters.asked[:-1]:
        begins.append(begins[-1] + len(received(each)))
    assert [line for line, _, _ in total.first_rejected] == begins[:10]


def test_piece_with_lost_answer_is_resent_with_its_key_to_next_master() -> None:
    asked: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        if len(asked) == 1:
            raise httpx.ReadError("cut")
        return accepted(request)

    masters = Masters(answer, count=2)
    upload = Upload(masters.client(), AT, "u")
    upload.send(lines(10))
    assert {each.headers["idempotency-key"] for each in asked} == {"u-1.1"}
    assert [each.url.host for each in asked] == ["m1", "m2"]
    assert upload.total.accepted == 10


@pytest.mark.parametrize("status", [429, 503])
def test_an_upload_goes_on_behind_what_is_durable_when_the_server_says(status: int) -> None:
    refusal = problem(status, "busy", durable_lines=4, accepted=3, headers={"Retry-After": "5"})
    nothing = problem(status, "busy", durable_lines=0, accepted=0, headers={"Retry-After": "5"})
    said: list[httpx.Response] = [nothing, refusal, nothing]
    masters = Masters(lambda request: said.pop(0) if said else accepted(request), patience_s=12)
    upload = Upload(masters.client(), AT, "u")
    upload.send(lines(10))
    assert [received(each)[0] for each in masters.asked] == [lines(10)[n] for n in (0, 0, 4, 4)]
    assert [each.headers["idempotency-key"] for each in masters.asked] == ["u-1.1", "u-1.1", "u-1.2", "u-1.2"]
    assert (upload.total.lines, upload.total.accepted, masters.now) == (10, 9, 15.0)


def test_duplicate_and_rejected_lines_of_a_durable_part_are_counted() -> None:
    first = [{"line": 2, "url": "x", "reason": "no URL"}]
    counts: dict[str, Any] = {"durable_lines": 4, "accepted": 2, "duplicate": 1, "rejected": 1, "first_rejected": first}
    said = [problem(429, "busy", **counts, headers={"Retry-After": "5"})]
    masters = Masters(lambda request: said.pop(0) if said else accepted(request, rejected=1))
    upload = Upload(masters.client(), AT, "u")
    upload.send(lines(10))
    total = upload.total
    assert (total.lines, total.accepted, total.duplicate, total.rejected) == (10, 7, 1, 2)
    assert [line for line, _, _ in total.first_rejected] == [2, 5]


def test_stalled_upload_is_given_up_and_reports_what_is_durable() -> None:
    busy = problem(429, "busy", durable_lines=4, accepted=4, headers={"Retry-After": "5"})
    stuck = problem(429, "busy", durable_lines=0, accepted=0, headers={"Retry-After": "5"})
    masters = Masters([busy, stuck, stuck], patience_s=12)
    upload = Upload(masters.client(), AT, "u")
    with pytest.raises(Refusal):
        upload.send(lines(10))
    assert (upload.total.lines, upload.total.accepted) == (4, 4)


def test_the_kind_of_lines_is_seen_by_itself() -> None:
    for first, kind in (
        ([b"http://a.test/"], "text/plain"),
        ([b"", b"# said", b'"http://a.test/"'], "application/jsonl"),
        ([b' {"url": "http://a.test/"}'], "application/jsonl"),
        ([b""], "text/plain"),
    ):
        masters = Masters(accepted)
        Upload(masters.client(), AT, "u").send(first)
        assert masters.asked[0].headers["content-type"] == kind


@pytest.mark.parametrize("content", [b"", b"a", b"a\nb", b"a\r\nb\n", b"\n\na\n"])
def test_files_give_their_lines_packed_or_not(content: bytes) -> None:
    expected = [line.removesuffix(b"\r") for line in content.split(b"\n")]
    if expected[-1] == b"":
        expected.pop()
    assert list(lines_of(io.BytesIO(content), "f")) == expected
    members = gzip.compress(content[:1]) + gzip.compress(content[1:])
    assert list(lines_of(io.BytesIO(members), "f")) == expected


def test_gzip_that_is_cut_or_is_none_further_on_is_said_to_be() -> None:
    packed = gzip.compress(b"\n".join(lines(1000)))
    with pytest.raises(Usage, match="truncated"):
        list(lines_of(io.BytesIO(packed[:-20]), "f"))
    with pytest.raises(Usage, match="f is not valid gzip"):
        list(lines_of(io.BytesIO(packed + b"rubbish"), "f"))


@pytest.mark.parametrize("defect", ["cut", "rubbish", "checksum"])
def test_lines_before_a_defect_of_a_file_are_sent(defect: str) -> None:
    packed = gzip.compress(b"\n".join(lines(1000)) + b"\n")
    match defect:
        case "cut":
            packed = packed[:-300]
        case "rubbish":
            packed += b"rubbish"
        case _:
            packed = packed[:-8] + bytes(8)
    found: list[bytes] = []
    with pytest.raises(Usage, match="The lines read before that were sent"):
        found.extend(line for piece in pieces_of(lines_of(io.BytesIO(packed), "f")) for line in piece)
    assert found == lines(1000)[: len(found)], "no line is cut"
    assert len(found) == 1000 if defect == "rubbish" else len(found) < 1000


def test_upload_of_a_cut_file_sends_its_lines_and_prints_the_totals(tmp_path: Path) -> None:
    cut, out, parser = tmp_path / "cut.gz", io.StringIO(), argparse.ArgumentParser()
    cut.write_bytes(gzip.compress(b"\n".join(lines(1000)))[:-300])
    configure(parser)
    arguments = parser.parse_args(["seeds", "add", "docs", "-f", str(cut)])
    masters = Masters(accepted)
    with masters.client() as client, pytest.raises(Usage, match=r"cut\.gz is truncated"):
        carried_out(arguments.carry_out, VerbContext(client, CtlOutput("table", out=out)), arguments)
    [sent] = masters.asked
    count = len(received(sent))
    assert received(sent) == lines(1000)[:count]
    assert out.getvalue() == f"crawl/docs seeds: {count} accepted, 0 duplicate, 0 rejected\n"


def test_padding_after_gzip_members_is_skipped() -> None:
    padding = bytes(1 << 19)  # longer than a block that is read
    members = padding.join((gzip.compress(b"a\n"), gzip.compress(b"b\n"), b""))
    assert list(lines_of(io.BytesIO(members), "f")) == [b"a", b"b"]


def test_any_number_of_lines_takes_no_more_memory_than_a_few_pieces(tmp_path: Path) -> None:
    def many() -> Iterator[bytes]:
        for n in range(200_000):
            yield b"https://host-%d.example.org/some/path/of/a/page/%d\n" % (n % 1000, n)

    file = tmp_path / "seeds.gz"
    with gzip.open(file, "wb", compresslevel=1) as out:
        out.writelines(many())
    counted = 0
    tracemalloc.start()
    try:
        with file.open("rb") as opened:
            for piece in pieces_of(lines_of(opened, "f"), 1 << 18):
                counted += len(piece)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert counted == 200_000
    assert peak < 4 << 20


def test_one_endless_line_takes_no_more_memory_than_any() -> None:
    class Endless(io.RawIOBase):
        left = 64 << 20

        def read(self, size: int = -1) -> bytes:
            size = min(size, self.left)
            self.left -= size
            return b"x" * size

    tracemalloc.start()
    try:
        [line] = lines_of(Endless(), "f")  # type: ignore[arg-type]  # all of a file that is read
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 65_536 < len(line) < 1 << 20
    assert peak < 8 << 20


def test_label_and_source_go_with_lines_that_are_not_json(tmp_path: Path) -> None:
    file = tmp_path / "seeds"
    file.write_text('# a comment\nhttp://b.test/\n\n{"url": "http://c.test/", "source": "own"}\n')
    masters = Masters(accepted)
    masters.run(
        "seeds", "add", "docs", "http://a.test/", "-f", str(file), "--label", "team=red", "--label", "note=a=b",
        "--source", "list-1",
    )  # fmt: skip
    given = {"labels": {"team": "red", "note": "a=b"}, "source": "list-1"}
    sent = [line for request in masters.asked for line in received(request)]
    assert [json.loads(line) if line else None for line in sent] == [
        {"url": "http://a.test/", **given},
        None,
        {"url": "http://b.test/", **given},
        None,
        {"url": "http://c.test/", "source": "own"},
    ]
    assert {request.headers["content-type"] for request in masters.asked} == {"application/jsonl"}
    with pytest.raises(Usage, match="NAME=VALUE"):
        masters.run("seeds", "add", "docs", "http://a.test/", "--label", "team")
    with pytest.raises(Usage, match="--label team=blue: the label team is given two values"):
        masters.run("seeds", "add", "docs", "http://a.test/", "--label", "team=red", "--label", "team=blue")
