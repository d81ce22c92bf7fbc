"""Seeds in messages that every broker takes, however many and however long they are."""

from hypothesis import given
from hypothesis import strategies as st

from api.crawls.seed_messages import seed_messages
from shared.domain.ids import CrawlId, Revision
from shared.domain.web.url import MAX_URL_CHARS
from shared.wire.messages import Link, encode

MAX_BYTES = 1 << 20
"""What NATS takes in one message unless it is told otherwise."""


def urls(count: int, chars: int) -> list[Link]:
    return [Link(f"https://a.test/{i}/".ljust(chars, "x"), 0) for i in range(count)]


@given(st.lists(st.tuples(st.integers(1, 600), st.sampled_from([20, 1000, 2048, MAX_URL_CHARS])), max_size=3))
def test_a_message_fits_and_none_is_left_out(parts: list[tuple[int, int]]) -> None:
    links = [link for count, chars in parts for link in urls(count, chars)]
    messages = list(seed_messages(CrawlId(1), Revision(1), "p", [(link, None) for link in links]))
    assert all(len(encode(message)) <= MAX_BYTES for message in messages)
    assert [link for message in messages for origin in message.origins for link in origin.links] == links
    assert [message.n for message in messages] == list(range(1, len(messages) + 1))
    total = 0
    for message in messages:
        total += sum(len(origin.links) for origin in message.origins)
        assert message.total == total, "a total tells an owner what it has missed"


def test_seeds_of_an_ordinary_length_go_500_a_message() -> None:
    messages = list(seed_messages(CrawlId(1), Revision(1), "p", [(link, None) for link in urls(1001, 60)]))
    assert [message.total for message in messages] == [500, 1000, 1001]
