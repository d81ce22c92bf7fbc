"""Server-Sent Events: parsed as the standard says however they are cut, and followed across the end of connections."""

from collections.abc import Iterator
from itertools import islice, pairwise

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.schemas.events import PAST_STORED, ping
from cli.ctl.feed import LONGEST_EVENT, EventParser, SseEvent, follow, kept
from cli.ctl.problems import Refusal
from cli.terminal.exits import Environment
from tests.support.api.scripted_masters import Masters, problem

STREAM = (
    b"\xef\xbb\xbf: hello\n\n"
    b"id: 1\nevent: crawl.started\ndata: {\"a\":\ndata: 1}\n\n"
    b"data: two\r\n\r\n"
    b"retry: 1500\rid:3\rdata\rdata:x\r\r"
    b"event: nothing\n\n"
    b"id: 4\nunknown: field\ndata: \xe2\x80\xa8 \xc2\x85 stays\n\n"
    b"id: 5\ndata: is not whole\n"
)  # fmt: skip
EVENTS = [
    SseEvent("crawl.started", '{"a":\n1}', "1"),
    SseEvent("message", "two", "1"),
    SseEvent("message", "\nx", "3"),
    SseEvent("message", "\u2028 \x85 stays", "4"),
]


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_events_are_the_same_wherever_the_bytes_are_cut(cuts: list[int]) -> None:
    parser = EventParser()
    places = [0, *sorted(cuts), len(STREAM)]
    found = [event for start, end in pairwise(places) for event in parser.feed(STREAM[start:end])]
    assert found == EVENTS
    assert (parser.retry_s, parser.last_id) == (1.5, "4")


def test_a_stream_without_events_is_not_held_for_ever() -> None:
    parser = EventParser()
    assert list(parser.feed(b"x" * LONGEST_EVENT)) == []
    with pytest.raises(Environment, match="did not answer with a stream of events"):
        list(parser.feed(b"x"))


class Cut(httpx.SyncByteStream):
    """Bytes, and then the connection is gone; or it ends well."""

    def __init__(self, content: bytes, *, broken: bool = True) -> None:
        self._content, self._broken = content, broken

    def __iter__(self) -> Iterator[bytes]:
        yield self._content
        if self._broken:
            raise httpx.ReadError("cut")


def stream(content: bytes, *, broken: bool = True) -> httpx.Response:
    return answered(Cut(content, broken=broken))


def answered(content: httpx.SyncByteStream, kind: str = "text/event-stream; charset=utf-8") -> httpx.Response:
    return httpx.Response(200, stream=content, headers={"Content-Type": kind})


def test_behind_a_cut_the_stream_goes_on_with_the_last_event_that_arrived() -> None:
    masters = Masters(
        [
            stream(b"id: 7\ndata: a\n\nid: 8\ndata: is not whole"),
            httpx.ConnectError("refused"),
            stream(b"id: 8\ndata: b\n\n", broken=False),
            problem(503, "unavailable", "the broker is away"),
            stream(b"id: 9\ndata: c\n\n"),
        ],
        count=2,
    )
    said = list(islice(follow(masters.client(), "/v1/events", {"kind": ["x", "y"]}, last_id="6"), 5))
    assert [each.data for each in said if isinstance(each, SseEvent)] == ["a", "b", "c"]
    assert [each for each in said if isinstance(each, str)] == [
        "http://m1 closed the connection (cut); reconnecting",
        "http://m2 ended the stream; reconnecting",
    ]
    assert [each.headers["last-event-id"] for each in masters.asked] == ["6", "7", "7", "8", "8"]
    assert masters.told[0] == "m1 GET /v1/events?kind=x&kind=y"
    assert masters.now > 0


def test_heartbeat_sets_resume_position_and_cut_event_does_not() -> None:
    masters = Masters([stream(b": ping\nid: 7\n\nevent: x\ndata: cut\nid: 8\n"), stream(b"data: a\n\n")])
    said = list(islice(follow(masters.client(), "/v1/events", None, last_id=None), 2))
    assert [each.data for each in said if isinstance(each, SseEvent)] == ["a"]
    assert masters.asked[1].headers["last-event-id"] == "7"


def test_stream_ends_with_its_crawl_and_survives_a_master_stop() -> None:
    shutdown = stream(b'event: end\ndata: {"reason":"shutdown"}\n\n', broken=False)
    deleted = stream(b'data: a\n\nevent: end\ndata: {"reason":"deleted"}\n\n', broken=False)
    masters = Masters([shutdown, deleted])
    said = list(follow(masters.client(), "/v1/events", None, last_id=None))
    assert [each.data for each in said if isinstance(each, SseEvent)] == [
        '{"reason":"shutdown"}', "a", '{"reason":"deleted"}',
    ]  # fmt: skip


class Silent(httpx.SyncByteStream):
    """Bytes, and then nothing any more."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def __iter__(self) -> Iterator[bytes]:
        yield self._content
        raise httpx.ReadTimeout("nothing came")


@pytest.mark.parametrize("said", [PAST_STORED, ping(2)], ids=["all were told", "nothing came for long"])
def test_kept_events_are_read_from_oldest_until_server_says_end(said: bytes) -> None:
    masters = Masters([answered(Silent(b"id: 1\ndata: a\n\nid: 2\ndata: b\n\n" + said))])
    assert [event.id for event in kept(masters.client(), "/v1/events", None, last_id=None)] == ["1", "2"]
    assert masters.asked[0].headers["last-event-id"] == "0"


@pytest.mark.parametrize(
    "answer",
    [
        stream(b"data: a\n\n"),
        stream(b"data: a\n\n", broken=False),
        stream(b'data: a\n\nevent: end\ndata: {"reason":"shutdown"}\n\n', broken=False),
        answered(Silent(b"data: a\n\n")),
    ],
    ids=["broken off", "ended", "told to end", "silent"],
)
def test_a_stream_that_ends_before_all_that_is_kept_was_told_is_no_success(answer: httpx.Response) -> None:
    found = kept(Masters([answer]).client(), "/v1/events", None, last_id="5")
    assert next(found).data == "a"
    with pytest.raises(Environment):
        next(found)


def test_the_first_connection_begins_at_the_present() -> None:
    masters = Masters([stream(b"id: 1\ndata: a\n\n")])
    next(follow(masters.client(), "/v1/events", None, last_id=None))
    assert "last-event-id" not in masters.asked[0].headers


def test_the_server_says_how_long_to_stay_away() -> None:
    masters = Masters([stream(b"retry: 60000\nid: 1\ndata: a\n\n"), stream(b"data: b\n\n")])
    list(islice(follow(masters.client(), "/v1/events", None, last_id=None), 3))
    assert masters.now == 60.0


@pytest.mark.parametrize("status", [401, 403, 404, 422])
def test_a_stream_that_is_refused_ends_the_command_also_later(status: int) -> None:
    for before in ([], [stream(b"data: a\n\n")]):
        masters = Masters([*before, problem(status, "x")])
        with pytest.raises(Refusal):
            list(follow(masters.client(), "/v1/events", None, last_id=None))


def test_started_stream_waits_for_cluster_that_is_long_away() -> None:
    away = [httpx.ConnectError("refused")] * 8
    masters = Masters([stream(b"id: 1\ndata: a\n\n"), *away, stream(b"id: 2\ndata: b\n\n")])
    said = list(islice(follow(masters.client(), "/v1/events", None, last_id=None), 11))
    assert [each.data for each in said if isinstance(each, SseEvent)] == ["a", "b"]
    with pytest.raises(Environment):
        next(follow(Masters([httpx.ConnectError("refused")]).client(), "/v1/events", None, last_id=None))


@pytest.mark.parametrize("kind", ["text/html; charset=utf-8", ""])
@pytest.mark.parametrize("started", [False, True])
def test_stream_of_a_server_that_is_no_master_ends_the_command(kind: str, *, started: bool) -> None:
    page = answered(Cut(b"<html>Welcome</html>", broken=False), kind)
    masters = Masters([*([stream(b"id: 1\ndata: a\n\n")] if started else []), page])
    with pytest.raises(Environment, match="is not an Orbweaver API; set another with --server or ORB_SERVER"):
        list(follow(masters.client(), "/v1/events", None, last_id=None))
    with pytest.raises(Environment, match="is not an Orbweaver API"):
        list(kept(Masters([answered(Cut(b"<html>"), kind)]).client(), "/v1/events", None, last_id=None))


def test_started_stream_survives_the_error_page_of_a_proxy() -> None:
    pages = [httpx.Response(status, html="<html>Bad gateway") for status in (502, 503, 504)]
    masters = Masters([stream(b"id: 1\ndata: a\n\n"), *pages, stream(b"id: 2\ndata: b\n\n")])
    said = list(islice(follow(masters.client(), "/v1/events", None, last_id=None), 3))
    assert [each.data for each in said if isinstance(each, SseEvent)] == ["a", "b"]
