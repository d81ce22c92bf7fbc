"""What a crawl lacks is said with its number, an example and the setting that changes it; examples are bounded."""

from typing import Any

import pytest

from shared.domain.crawl.spec_parse import parse_spec
from shared.domain.explain.excluded_links import CUT, MAX_URL, ExcludedLinkExample, decoded, encoded, kept, losses
from shared.domain.explain.losses import Losses

SPEC = parse_spec({"seeds": ["http://a.test/"], "scope": {"max_depth": 1}, "extract": {"max_links_per_page": 20_000}})
TWIN = ExcludedLinkExample("http://www.a.test/1", "http://a.test/")
ELSEWHERE = ExcludedLinkExample("http://b.test/1", "http://a.test/")


def of(left_out: dict[str, int], truncated: dict[str, int] | None = None, **examples: ExcludedLinkExample) -> Losses:
    return Losses(left_out, truncated or {}, {reason: [example] for reason, example in examples.items()})


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("depth", "1,000 links deeper than --max-depth 1; a greater --max-depth follows them"),
        ("other_port", "1,000 links to other ports; --scope domain follows them"),
        ("outside_prefix", "1,000 links outside of the seeds' paths; --scope host follows them"),
        ("exclude_pattern", "1,000 links matching --exclude; another --exclude, or none, follows them"),
        ("max_links_per_page", "1,000 links beyond extract.max_links_per_page (20000); a greater extract.max_links"),
        ("url_length", "1,000 links longer than scope.max_url_length (2048 characters); a greater scope.max_url"),
        ("scheme", "1,000 links of another scheme"),
        ("invalid", "1,000 links without a valid URL"),
        ("a_rule_of_tomorrow", "1,000 links by the rule a_rule_of_tomorrow"),
    ],
)
def test_links_left_out_are_told_with_the_flag(reason: str, said: str) -> None:
    assert of({reason: 1_000}).links(SPEC)[0].startswith(said)


def test_reasons_are_told_in_the_order_of_their_numbers() -> None:
    told = of({"depth": 1, "other_host": 50}, other_host=TWIN).links(SPEC)
    assert told[0].startswith("50 links to other hosts, such as http://www.a.test/1 on http://a.test/; --scope domain")
    assert told[1].endswith("a greater --max-depth follows it")


@pytest.mark.parametrize(("example", "flag"), [(TWIN, "--scope domain"), (ELSEWHERE, "--scope any")])
def test_a_crawl_of_one_page_names_the_scope_that_its_links_need(example: ExcludedLinkExample, flag: str) -> None:
    said = of({"other_host": 50}, other_host=example).too_narrow(SPEC)
    assert said == f"only 1 page was crawled: the rules left out 50 links. To follow them: {flag}."
    assert of({}).too_narrow(SPEC) == ""


def test_crawl_of_one_page_needs_a_fresh_start_for_nofollow() -> None:
    assert (
        of({"nofollow": 2})
        .too_narrow(SPEC)
        .endswith("To follow them: extract.follow_nofollow in the spec (with --fresh, or another --out).")
    )


def test_links_that_a_wider_scope_finds_in_the_archive_need_no_fresh_start() -> None:
    archive = "the same command with a wider scope finds such links in the archive"
    assert of({"depth": 3, "requisite_host": 1}).ways(SPEC) == [archive]
    assert of({"depth": 3, "nofollow": 1}).ways(SPEC) == [
        archive,
        "pages already fetched are not read again for extract.follow_nofollow: add --fresh, or another --out",
    ]
    assert of({"nofollow": 1, "max_links_per_page": 9}).ways(SPEC) == [
        "pages already fetched are not read again for a greater extract.max_links_per_page or extract.follow_nofollow: "
        "add --fresh, or another --out"
    ]


def test_links_that_no_spec_follows_come_last_and_advise_nothing() -> None:
    losses = of({"scheme": 900, "invalid": 5, "other_host": 1}, other_host=TWIN)
    said = losses.links(SPEC)
    assert said[0].startswith("1 link to other hosts")
    assert said[1:] == ["900 links of another scheme", "5 links without a valid URL"]
    assert losses.too_narrow(SPEC).startswith(
        "only 1 page was crawled: the rules left out 1 link. To follow it: --scope"
    )
    alone = of({"scheme": 900, "invalid": 5})
    assert (alone.ways(SPEC), alone.too_narrow(SPEC)) == ([], "")


@pytest.mark.parametrize("reason", ["other_host", "other_port", "other_domain", "outside_prefix"])
def test_links_that_an_earlier_scope_left_out_need_no_other_one(reason: str) -> None:
    """They were told with `--scope domain`, which is narrower than the scope that follows them."""
    wide = parse_spec({"seeds": ["http://a.test/"], "scope": {"mode": "any"}})
    losses = of({reason: 2}, None, **{reason: TWIN})
    assert losses.links(wide)[0].endswith("; the present scope follows them")
    assert (losses.ways(wide), losses.ways(SPEC) != []) == ([], True)


def test_a_spec_of_one_scheme_is_named_for_links_of_the_other() -> None:
    narrow = parse_spec({"seeds": ["https://a.test/"], "scope": {"schemes": ["https"]}})
    said = of({"scheme": 2}).links(narrow)
    assert said == ["2 links of another scheme; scope.schemes in the spec follows them"]


@pytest.mark.parametrize("reason", ["length", "time", "disconnect", "decoded", "undecodable", "of tomorrow"])
def test_pages_in_part_are_told_and_hide_urls(reason: str) -> None:
    cut = of({}, {reason: 2})
    assert cut.pages(SPEC)[0].startswith("2 pages ")
    assert cut.hide_urls()
    assert not of({"other_host": 3}).hide_urls()
    assert of({"max_links_per_page": 3}).hide_urls()


def test_an_example_of_a_long_url_is_cut_and_still_matches() -> None:
    long = "http://a.test/" + "x" * 5_000
    assert kept(long) == long[:MAX_URL] + CUT
    assert ExcludedLinkExample(kept(long), "p").is_of(long)
    assert not ExcludedLinkExample(kept(long), "p").is_of(long[:MAX_URL])


@pytest.mark.parametrize("counts", [{}, {"depth": 3}, {"other_host": 48, "max_links_per_page": 5_001}])
def test_the_counts_of_a_page_survive_their_row(counts: dict[str, int]) -> None:
    assert decoded(encoded(counts)) == counts


@pytest.mark.parametrize("row", [None, "", ";;", "depth", "depth x", "depth -1"])
def test_a_row_that_says_nothing_counts_nothing(row: Any) -> None:
    assert decoded(row) == {}


def test_a_body_in_part_counts_of_a_page_only() -> None:
    assert losses(True, "length", "nofollow 2", None) == [("left_out", "nofollow", 2), ("truncated", "length", 1)]
    assert losses(False, "length", None, "http_404") == []


def test_page_that_must_not_be_indexed_counts_by_its_directive() -> None:
    assert losses(False, "length", None, "noindex") == [("not_indexed", "noindex", 1)]
    assert losses(False, None, "depth 2", "unavailable_after") == [
        ("left_out", "depth", 2),
        ("outlinks", "left_out", 1),
        ("not_indexed", "unavailable_after", 1),
    ]
