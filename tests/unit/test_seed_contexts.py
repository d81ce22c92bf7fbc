"""The labels and the source of a seed: their bounds, and their way through every message."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.crawls.seed_messages import SeedLink, seed_messages
from api.frontier.discoveries import gather, with_priorities
from shared.domain.crawl.priority_rules import PriorityRule, compiled_priority
from shared.domain.crawl.spec import decode_spec, encode_spec
from shared.domain.crawl.spec_parse import SpecError, parse_spec
from shared.domain.frontier.seed_contexts import (
    MAX_CONTEXT_BYTES,
    MAX_LABEL_CHARS,
    MAX_SEED_LABELS,
    MAX_SOURCE_CHARS,
    SeedContext,
    context_at,
    context_bytes,
    context_id,
    context_of,
    decoded,
    encoded,
    numbered,
)
from shared.domain.frontier.store_model import LinkWithContext
from shared.domain.ids import CrawlId, Fingerprint, HostId, LeaseId, Partition, Revision
from shared.domain.reads.items import PageItems, TakenItem
from shared.ports.broker import Delivered
from shared.wire.items import decode_items, encode_items
from shared.wire.messages import Discoveries, Link, Origin, ShardUrl, UrlShard, decode_discoveries, decode_shard, encode
from workers.visit_report import contexts_of

RED = SeedContext((("team", "red"),), "list-1")
BLUE = SeedContext((("team", "blue"),))
URL = "https://a.test/"

contexts = st.builds(
    context_of,
    st.dictionaries(st.from_regex(r"[a-z]{1,5}", fullmatch=True), st.text(max_size=9), max_size=3),
    st.text(max_size=9),
)


def seed(**fields: Any) -> Any:
    return parse_spec({"seeds": [{"url": URL, **fields}]}).seeds[0]


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"labels": {"Team": "x"}}, "seeds[0].labels"),
        ({"labels": {"team": "two\nlines"}}, "seeds[0].labels.team"),
        ({"labels": {"team": "x" * (MAX_LABEL_CHARS + 1)}}, "seeds[0].labels.team"),
        ({"labels": {f"n{n}": "x" for n in range(MAX_SEED_LABELS + 1)}}, "seeds[0].labels"),
        ({"labels": {"team": 1}}, "seeds[0].labels"),
        ({"labels": ["team"]}, "seeds[0].labels"),
        ({"source": "x" * (MAX_SOURCE_CHARS + 1)}, "seeds[0].source"),
        ({"source": "two\nlines"}, "seeds[0].source"),
        ({"source": 7}, "seeds[0].source"),
        ({"labels": {f"n{n}": "x" * MAX_LABEL_CHARS for n in range(9)}}, "seeds[0]"),
    ],
)
def test_wrong_label_or_source_is_refused_with_its_path(fields: Mapping[str, Any], path: str) -> None:
    with pytest.raises(SpecError) as refused:
        seed(**fields)
    assert [problem.path for problem in refused.value.problems] == [path]


def test_all_problems_of_all_seeds_are_told_at_once() -> None:
    wrong = {"labels": {"A": "x", "b": "\n"}, "source": "\n"}
    with pytest.raises(SpecError) as refused:
        parse_spec({"seeds": [{"url": URL, **wrong}, {"url": URL, "source": "\n"}]})
    paths = [problem.path for problem in refused.value.problems]
    assert paths == ["seeds[0].labels", "seeds[0].labels.b", "seeds[0].source", "seeds[1].source"]


def test_greatest_labels_and_source_are_taken() -> None:
    assert seed(labels={f"n{n}": "x" for n in range(MAX_SEED_LABELS)}).context is not None
    context = seed(labels={"team": "x" * MAX_LABEL_CHARS}, source="x" * MAX_SOURCE_CHARS).context
    assert context == SeedContext((("team", "x" * MAX_LABEL_CHARS),), "x" * MAX_SOURCE_CHARS)
    room = MAX_CONTEXT_BYTES - context_bytes(SeedContext(tuple((f"n{n}", "x" * 255) for n in range(7)), "."))
    fits = seed(labels={f"n{n}": "x" * 255 for n in range(7)}, source="x" * (room + 1)).context
    assert fits is not None
    assert context_bytes(fits) == MAX_CONTEXT_BYTES


def test_spec_without_labels_is_stored_in_as_many_bytes_as_before() -> None:
    spec = parse_spec({"seeds": [URL]})
    assert b'"seeds":[{"url":"https://a.test/","priority":0}]' in encode_spec(spec)
    assert spec.seeds[0].context is None
    labelled = parse_spec({"seeds": [{"url": URL, "labels": {"b": "2", "a": "1"}, "source": "s"}]})
    assert decode_spec(encode_spec(labelled)) == labelled
    assert labelled.seeds[0].context == SeedContext((("a", "1"), ("b", "2")), "s")


@given(st.lists(contexts, max_size=6))
def test_every_part_of_a_message_finds_its_context(given_ones: list[SeedContext | None]) -> None:
    distinct, numbers = numbered(given_ones)
    assert [context_at(distinct, numbers, place) for place in range(len(given_ones))] == given_ones
    assert len(distinct) == len({each for each in given_ones if each is not None})


@pytest.mark.parametrize("numbers", [[], [0], [-1], [3]])
def test_number_that_names_no_context_is_none(numbers: list[int]) -> None:
    assert context_at([RED, BLUE], numbers, 0) is None


@given(contexts, contexts)
def test_contexts_have_one_text_and_one_id_if_they_are_equal(
    one: SeedContext | None, other: SeedContext | None
) -> None:
    if one is None or other is None:
        return
    assert decoded(encoded(one)) == one
    assert 0 <= context_id(one) < 2**63
    assert (context_id(one) == context_id(other)) == (encoded(one) == encoded(other)) == (one == other)


def test_seeds_are_published_with_their_contexts_and_stay_within_a_message() -> None:
    long = [SeedContext((("n", str(n)),), "x" * MAX_SOURCE_CHARS) for n in range(1_200)]
    seeds: list[SeedLink] = [(Link(f"https://a.test/{n}", 0), context) for n, context in enumerate(long)]
    seeds += [(Link("https://a.test/plain", 0), None), (Link("https://a.test/last", 0), long[0])]
    messages = list(seed_messages(CrawlId(1), Revision(1), "p", seeds))
    assert len(messages) > 1
    assert all(len(encode(message)) < 1 << 20 for message in messages)
    assert sum(len(origin.links) for message in messages for origin in message.origins) == messages[-1].total
    found = {
        link.url: context_at(message.contexts, message.context_of, place)
        for message in map(decode_discoveries, map(encode, messages))
        for place, origin in enumerate(message.origins)
        for link in origin.links
    }
    assert found == {link.url: context for link, context in seeds}


def test_message_without_contexts_is_as_long_as_before() -> None:
    plain = Discoveries(1, 1, "p", 1, 1, [Origin(0, b"", [Link(URL, 0)])])
    assert set(msgspec.msgpack.decode(encode(plain))) == {"type", "crawl", "spec", "producer", "n", "total", "origins"}
    shard = UrlShard(1, 1, 1, 1, "a.test", 0, 0, [ShardUrl(URL, 0)])
    assert not {"contexts", "context_of"} & set(msgspec.msgpack.decode(encode(shard)))


def test_owner_gives_each_link_the_context_of_its_origin() -> None:
    origins = [
        Origin(0, b"", [Link("https://a.test/1", 0)]),
        Origin(0, b"", [Link("https://a.test/2", 0), Link("ftp://a.test/", 0), Link("https://a.test/3", 0)]),
    ]
    message = Discoveries(1, 1, "p", 1, 4, origins, [RED], [0, 1])
    batch = gather([Delivered(1, 0, encode(message))], Partition(0), 1)
    assert batch.with_contexts
    rules = compiled_priority((PriorityRule(match="/3", value=5),))
    ((_, links, refused),) = with_priorities(batch, {CrawlId(1): rules}).messages
    assert refused == 1
    assert [link.context if isinstance(link, LinkWithContext) else None for link in links] == [None, RED, RED]
    assert [link.priority for link in links] == [0, 0, 5]
    plain = gather([Delivered(1, 0, encode(Discoveries(1, 1, "p", 1, 1, origins[:1])))], Partition(0), 1)
    assert not plain.with_contexts


def test_worker_finds_the_contexts_of_its_shard() -> None:
    urls = [ShardUrl(f"https://a.test/{n}", 0) for n in range(3)]
    distinct, numbers = numbered([BLUE, None, RED])
    shard = decode_shard(encode(UrlShard(1, 1, 1, 1, "a.test", 0, 0, urls, distinct, numbers)))
    assert list(contexts_of(shard).values()) == [BLUE, RED]
    assert contexts_of(UrlShard(1, 1, 1, 1, "a.test", 0, 0, urls)) == {}


def test_items_carry_the_labels_and_source_of_their_page() -> None:
    page = PageItems(HostId(1), Fingerprint(bytes(16)), URL, LeaseId(1), 1, 1, (TakenItem(bytes(16), "r", b"{}"),))
    (data,) = encode_items(CrawlId(7), "shop", [page._replace(context=RED), page._replace(context=BLUE), page])
    first, second, third = msgspec.json.decode(data)["pages"]
    assert (first["labels"], first["source"]) == ({"team": "red"}, "list-1")
    assert (second["labels"], "source" in second) == ({"team": "blue"}, False)
    assert not {"labels", "source"} & set(third), "a page without them is written as before"
    assert decode_items(data) == (7, [page, page, page])
