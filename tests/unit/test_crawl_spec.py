from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.domain import suggestions as meant
from shared.domain.crawl.spec import (
    SLOTS_WITHOUT_DELAY,
    CrawlSpec,
    Fetch,
    Politeness,
    ScopeMode,
    Seed,
    decode_spec,
    encode_spec,
    host_slots,
    user_agent,
)
from shared.domain.crawl.spec_parse import SpecError, parse_spec
from shared.domain.suggestions import SUGGESTED

SEEDS = ["https://example.org/"]


def problems_of(**fields: Any) -> dict[str, str]:
    with pytest.raises(SpecError) as caught:
        parse_spec({"seeds": SEEDS, **fields})
    return {problem.path: str(problem) for problem in caught.value.problems}


def test_seeds_alone_make_a_spec_with_defaults() -> None:
    spec = parse_spec({"seeds": ["https://Example.org#top", {"url": "http://example.org:80/a", "priority": 5}]})
    assert spec.seeds == (Seed(url="https://example.org/"), Seed(url="http://example.org/a", priority=5))
    assert spec == CrawlSpec(seeds=spec.seeds)
    assert (spec.politeness.delay_s, spec.politeness.obey_robots, spec.scope.mode) == (1.0, True, ScopeMode.HOST)
    assert parse_spec({"seeds": "https://example.org/"}) == parse_spec({"seeds": SEEDS})


def test_an_empty_section_has_its_defaults() -> None:
    assert parse_spec({"seeds": SEEDS, "scope": None, "budget": {}}) == parse_spec({"seeds": SEEDS})


def test_every_problem_is_reported_at_its_place_in_one_go() -> None:
    found = problems_of(
        seedz=1,
        name="Not A Label",
        weight=0,
        scope={"mode": "hots", "max_depht": 3, "schemes": ["https", "ftp"], "include": "x"},
        politeness={"delay_s": "1", "max_delay_s": float("nan")},
        budget={"max_pages": 0},
        fetch={"headers": {"Host": "x", "a b": "c"}, "proxy": "nowhere", "contact": "me"},
        egress={"allow": ["10.0.0.0/8", "10.0.0.1/8"]},
        output=[],
    )
    assert set(found) == {
        "seedz",
        "name",
        "weight",
        "scope.mode",
        "scope.max_depht",
        "scope.schemes[1]",
        "scope.include",
        "politeness.delay_s",
        "politeness.max_delay_s",
        "budget.max_pages",
        "fetch.headers.Host",
        "fetch.headers",
        "fetch.proxy",
        "fetch.contact",
        "egress.allow[1]",
        "output",
    }
    assert "did you mean seeds?" in found["seedz"]
    assert found["scope.mode"].endswith("expected one of host, domain, prefix, any, got 'hots' (did you mean host?)")
    assert "did you mean max_depth?" in found["scope.max_depht"]
    assert found["weight"] == "weight: expected a whole number >= 1, got 0"
    assert "did you mean 10.0.0.0/8?" in found["egress.allow[1]"]


@pytest.mark.parametrize(
    ("fields", "path", "says"),
    [
        ({"seeds": []}, "seeds", "length >= 1"),
        ({"seeds": ["example.org"]}, "seeds[0].url", "did you mean https://example.org/?"),
        ({"seeds": ["http://me:secret@example.org/"]}, "seeds[0].url", "credentials do not belong in seeds"),
        ({"seeds": ["ftp://example.org/"]}, "seeds[0].url", "not an http or https URL"),
        ({"seeds": [7]}, "seeds[0]", "expected a mapping of fields, got 7"),
        ({"seeds": 7}, "seeds", "expected a list, got 7"),
        ({"seeds": [{"url": "http://a/", "priority": 101}]}, "seeds[0].priority", "<= 100"),
        ({"seeds": ["http://a/"], "scope": {"schemes": ["https"]}}, "seeds[0].url", "scope.schemes"),
        ({"seeds": ["http://a/" + "b" * 99], "scope": {"max_url_length": 99}}, "seeds[0].url", "max_url_length"),
        ({"scope": {"exclude": ["ok", "["]}}, "scope.exclude[1]", "is not a regular expression"),
        ({"scope": {"include": ["(?=a)"]}}, "scope.include[0]", "no lookahead"),
        ({"scope": {"include": ["a" * 1001]}}, "scope.include[0]", "1000"),
        ({"politeness": {"delay_s": 10**400}}, "politeness.delay_s", "expected a number closer to 0, got 1000"),
        ({"politeness": {"delay_s": 10**5000}}, "politeness.delay_s", "closer to 0, got a number with too many digits"),
        ({"budget": {"max_pages": 10**5000}}, "budget.max_pages", "got a number with too many digits"),
        ({"politeness": {"host_slots": 2}}, "politeness.host_slots", "set delay_s to 0"),
        ({"politeness": {"adaptive": True, "max_delay_s": 0.5}}, "politeness.max_delay_s", "less than delay_s"),
        ({"retry": {"base_s": 10, "max_s": 5}}, "retry.max_s", "less than base_s"),
        ({"fetch": {"user_agent": "a\r\nX: y"}}, "fetch.user_agent", "printable"),
        ({"fetch": {"user_agent": "Googlebot/2.1"}}, "fetch.user_agent", "names another crawler (Googlebot)"),
        ({"fetch": {"user_agent": "Mozilla/5.0 (X11) AppleWebKit/537 Chrome/126.0"}}, "fetch.user_agent", "a browser"),
        ({"fetch": {"headers": {"X": "a\r\nY: b"}}}, "fetch.headers.X", "cannot carry"),
        ({"fetch": {"headers": {"user-agent": "x"}}}, "fetch.headers.user-agent", "fetch.user_agent"),
        ({"fetch": {"headers": {"X": 1}}}, "fetch.headers", "expected text"),
        ({"fetch": {"proxy": "ftp://a:1"}}, "fetch.proxy", "socks5"),
        ({"fetch": {"headers": {"authorization": "x"}}}, "fetch.headers.authorization", "every host"),
        ({"fetch": {"headers": {"Cookie": "x"}}}, "fetch.headers.Cookie", "leave it out"),
        ({"fetch": {"headers": {"Proxy-Authorization": "x"}}}, "fetch.headers.Proxy-Authorization", "credential"),
        ({"fetch": {"proxy": "http://me:secret@proxy:3128"}}, "fetch.proxy", "must not hold a user name or password"),
        ({"fetch": {"proxy": "http://me@proxy:3128"}}, "fetch.proxy", "must not hold a user name or password"),
    ],
)
def test_bad_values_are_refused_with_a_reason(fields: dict[str, Any], path: str, says: str) -> None:
    found = problems_of(**fields)
    assert list(found) == [path]
    assert says in found[path]


@pytest.mark.parametrize(
    ("entry", "hosts", "others"),
    [
        ("example.org", ["example.org"], ["www.example.org", "example.org:8080", "example.com"]),
        ("example.org:8080", ["example.org:8080"], ["example.org"]),
        ("*.example.org", ["a.example.org", "a.b.example.org"], ["example.org", "badexample.org", "a.example.org:81"]),
        ("*.example.org:81", ["a.example.org:81"], ["a.example.org", "a.example.org:8081", "example.org:81"]),
        ("127.0.0.1:81", ["127.0.0.1:81"], ["127.0.0.1"]),
    ],
)
def test_robots_are_ignored_for_the_named_hosts_alone(entry: str, hosts: list[str], others: list[str]) -> None:
    robots = parse_spec({"seeds": SEEDS, "robots": {"ignore_for": [entry]}}).robots
    assert [host for host in (*hosts, *others) if robots.ignored_for(host)] == hosts


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ("http://example.org/", "neither a host"),
        ("*", "neither a host"),
        ("a.*.example.org", "neither a host"),
        ("exa mple.org", "neither a host"),
        ("user@example.org", "neither a host"),
        ("Example.org", "write example.org"),
        ("*.Example.org", "write *.example.org"),
        ("example.org:443", "write example.org"),
        ("example.org:80", "write example.org"),
    ],
)
def test_entry_of_ignore_for_that_is_no_host_is_refused(entry: str, says: str) -> None:
    found = problems_of(robots={"ignore_for": ["localhost:8080", entry]})
    assert says in found["robots.ignore_for[1]"]


def test_robots_exceptions_are_refused_where_no_robots_are_obeyed() -> None:
    found = problems_of(robots={"ignore_for": ["example.org"]}, politeness={"obey_robots": False})
    assert "leave politeness.obey_robots out" in found["robots.ignore_for"]


def test_no_secret_of_a_seed_is_repeated_in_an_error() -> None:
    assert "secret" not in problems_of(seeds=["http://me:secret@example.org/"])["seeds[0].url"]


def test_no_credential_of_a_spec_is_repeated_in_an_error() -> None:
    fetch = {"proxy": "http://me:secret@proxy:1", "headers": {"Cookie": "secret", "Authorization": "secret"}}
    found = problems_of(fetch=fetch)
    assert len(found) == 3
    assert not any("secret" in said for said in found.values())


def problem_paths(data: dict[str, Any]) -> list[str]:
    try:
        parse_spec(data)
    except SpecError as error:
        return [problem.path for problem in error.problems] or ["(an error without problems)"]
    return []


@pytest.mark.parametrize("data", [None, [], "x", 7])
def test_a_spec_that_is_no_mapping_is_refused(data: Any) -> None:
    with pytest.raises(SpecError, match="expected a mapping"):
        parse_spec(data)


def test_missing_seeds_are_named() -> None:
    with pytest.raises(SpecError, match="seeds: is required"):
        parse_spec({})


SPECS = st.builds(
    lambda **fields: parse_spec({"seeds": SEEDS, **fields}),
    weight=st.integers(1, 1000),
    scope=st.fixed_dictionaries(
        {"mode": st.sampled_from([mode.value for mode in ScopeMode])},
        optional={"max_depth": st.none() | st.integers(0, 99), "exclude": st.lists(st.just(r"\.zip$"), max_size=2)},
    ),
    politeness=st.fixed_dictionaries({"delay_s": st.floats(0, 60)}),
    budget=st.fixed_dictionaries({}, optional={"max_pages": st.none() | st.integers(1, 2**53)}),
    fetch=st.fixed_dictionaries({"headers": st.dictionaries(st.sampled_from(["A", "B", "C"]), st.just("x"))}),
)


@given(SPECS)
def test_a_spec_survives_encoding_and_parsing_again(spec: CrawlSpec) -> None:
    assert decode_spec(encode_spec(spec)) == spec
    assert parse_spec(msgspec.to_builtins(spec)) == spec
    assert parse_spec(msgspec.json.decode(encode_spec(spec))) == spec


@given(SPECS, SPECS)
def test_encodings_are_equal_exactly_for_equal_specs(one: CrawlSpec, other: CrawlSpec) -> None:
    assert (encode_spec(one) == encode_spec(other)) == (one == other)


def test_encoding_does_not_depend_on_the_order_of_headers() -> None:
    one = parse_spec({"seeds": SEEDS, "fetch": {"headers": {"A": "1", "B": "2"}}})
    other = parse_spec({"seeds": SEEDS, "fetch": {"headers": {"B": "2", "A": "1"}}})
    assert encode_spec(one) == encode_spec(other)


def test_a_stored_spec_with_fields_of_a_later_version_is_read() -> None:
    stored = msgspec.json.decode(encode_spec(parse_spec({"seeds": SEEDS})))
    stored["scope"]["invented_later"] = 1
    assert decode_spec(msgspec.json.encode(stored)) == parse_spec({"seeds": SEEDS})


@given(
    st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5), st.lists, max_leaves=5)
)
def test_any_field_value_gives_a_spec_or_problems_at_that_field(value: Any) -> None:
    for name in CrawlSpec.__struct_fields__:
        assert all(path.startswith(name) for path in problem_paths({"seeds": SEEDS, name: value}))


def test_user_agent_names_the_software_and_the_contact_and_never_a_browser() -> None:
    spec = parse_spec({"seeds": SEEDS, "fetch": {"contact": "https://example.org/bot"}})
    assert user_agent(spec, "1.2.3") == "orb/1.2.3 (+https://example.org/bot)"
    assert user_agent(CrawlSpec(seeds=spec.seeds), "1.2.3") == "orb/1.2.3"
    assert user_agent(CrawlSpec(seeds=spec.seeds, fetch=Fetch(user_agent="Mine/1")), "1.2.3") == "Mine/1"


def test_more_than_one_slot_only_without_delay() -> None:
    assert host_slots(Politeness(), 1.0) == 1
    assert host_slots(Politeness(delay_s=0.0, host_slots=4), 0.5) == 1  # robots asked for a delay
    assert host_slots(Politeness(delay_s=0.0), 0.0) == SLOTS_WITHOUT_DELAY
    assert host_slots(Politeness(delay_s=0.0, host_slots=2), 0.0) == 2


def test_limits_of_a_fetch_are_the_specs() -> None:
    limits = Fetch(connect_timeout_s=1, first_byte_timeout_s=2, total_timeout_s=3, max_body_bytes=2048).limits()
    assert (limits.connect_s, limits.first_byte_s, limits.total_s, limits.body_bytes) == (1, 2, 3, 2048)


def test_no_more_than_some_of_many_wrong_names_are_guessed_at() -> None:
    """The rest is told without a guess, for each costs time."""
    many = {f"sead{number}": 1 for number in range(500)}
    with pytest.raises(SpecError) as refused:
        parse_spec({"seeds": ["http://a.test/"], **many})
    hints = [problem.hint for problem in refused.value.problems]
    assert len(hints) == 500
    assert all(hints[:SUGGESTED])
    assert not any(hints[SUGGESTED:])


def test_a_name_much_longer_than_any_there_is_is_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[str] = []

    def close(name: str, *_: object, **__: object) -> list[str]:
        compared.append(name)
        return []

    monkeypatch.setattr(meant, "get_close_matches", close)
    assert meant.nearest("s" * 100_000, ["seeds", "scope"]) is None
    assert compared == []
    assert meant.nearest("seed", ["seeds", "scope"]) is None
    assert compared == ["seed"]


@pytest.mark.parametrize(
    ("items", "path", "example"),
    [
        ({"name": "a"}, "extract.items", "[{name: article, fields: {title: {css: h1}}}]"),
        ([["a"]], "extract.items[0]", "{name: article, fields: {title: {css: h1}}}"),
        ([{"name": "a", "fields": ["h1"]}], "extract.items[0].fields", "{title: {css: h1}}"),
        ([{"name": "a", "fields": {"t": ["h1"]}}], "extract.items[0].fields.t", "{css: h1}"),
    ],
)
def test_item_rule_of_the_wrong_form_is_answered_with_an_example(items: Any, path: str, example: str) -> None:
    with pytest.raises(SpecError) as refused:
        parse_spec({"seeds": ["http://a.test/"], "extract": {"items": items}})
    (problem,) = refused.value.problems
    assert problem.path == path
    assert problem.hint.endswith(f"for example {example}")
