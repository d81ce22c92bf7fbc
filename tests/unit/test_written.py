"""YAML that people write, and YAML that is made to take long."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.ctl.output import as_yaml
from cli.terminal.exits import Usage
from cli.terminal.yaml_input import document


def bomb(levels: int, width: int = 10) -> str:
    lines = ['a0: &a0 "xxxxxxxxxx"']
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * width)}]" for n in range(1, levels)]
    return "\n".join(lines)


@pytest.mark.parametrize("levels", [9, 40])
def test_aliases_that_make_much_of_little_are_refused_before_they_are_built(levels: int) -> None:
    """What they make was built and sent: 59 s until a master refused it with 413."""
    with pytest.raises(Usage, match=r"crawl\.yaml:1:1: this is not YAML: its aliases expand to more than"):
        document(bomb(levels), "crawl.yaml")


def test_merged_mappings_that_make_much_of_little_are_refused() -> None:
    lines = ["a0: &a0 {k: v}", *(f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 10)}]}}" for n in range(1, 30))]
    with pytest.raises(Usage, match="its aliases expand to more than"):
        document("\n".join(lines), "crawl.yaml")


def test_alias_of_what_it_stands_in_is_refused() -> None:
    with pytest.raises(Usage, match="an alias is inside its own anchor"):
        document("a: &a [1, *a]", "crawl.yaml")


def test_ordinary_aliases_and_long_documents_are_taken() -> None:
    assert document("base: &b {delay_s: 2}\none: *b\ntwo: {<<: *b, x: 1}", "crawl.yaml") == {
        "base": {"delay_s": 2},
        "one": {"delay_s": 2},
        "two": {"delay_s": 2, "x": 1},
    }
    assert len(document(bomb(5), "crawl.yaml")) == 5


@pytest.mark.parametrize(
    "plain",
    ["22:00", "06:00:30", "-1:30", "1:30.5", "yes", "No", "ON", "off", "2030-06-01", "2030-06-01T00:00:00Z", "1e3"],
)
def test_plain_value_of_yaml_1_1_that_looks_like_text_is_text(plain: str) -> None:
    assert document(f"a: {plain}", "x.yaml") == {"a": plain}
    assert document(f"{plain}: [{plain}]", "x.yaml") == {plain: [plain]}
    assert document(as_yaml({"a": plain}), "x.yaml") == {"a": plain}, "what is written is read as it was"


@pytest.mark.parametrize(
    ("plain", "value"),
    [("true", True), ("False", False), ("-5", -5), ("0x1f", 31), ("1.0e+3", 1000.0), ("~", None), ("", None)],
)
def test_plain_value_of_yaml_that_is_no_text_has_its_type(plain: str, value: object) -> None:
    assert document(f"a: {plain}", "x.yaml") == {"a": value}
    assert document(as_yaml({"a": value}), "x.yaml") == {"a": value}
    assert document(as_yaml({"a": plain}), "x.yaml") == {"a": plain}


@pytest.mark.parametrize(("tagged", "value"), [("!!int 22:00", 1320), ("!!bool yes", True), ("!!str 5", "5")])
def test_tag_of_yaml_says_the_type(tagged: str, value: object) -> None:
    assert document(f"a: {tagged}", "x.yaml") == {"a": value}


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(_JSON, st.sampled_from([None, 2]))
def test_json_is_read_as_json(value: object, indent: int | None) -> None:
    assert document(json.dumps(value, indent=indent), "crawl.json") == value


@pytest.mark.parametrize(("text", "why"), [('{"a": 1, "a": 2}', r"1:10: .*'a' is repeated"), ('{"a": [1}', "1:9: ")])
def test_faulty_json_is_pointed_at(text: str, why: str) -> None:
    with pytest.raises(Usage, match=rf"crawl\.json:{why}"):
        document(text, "crawl.json")


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e400"])
def test_number_that_is_not_finite_is_text_in_json_as_in_yaml(number: str) -> None:
    assert document(f'{{"a": {number}}}', "crawl.json") == {"a": number}


@pytest.mark.parametrize("text", ["a: " + "[" * 5000 + "]" * 5000, "[" * 100_000 + "]" * 100_000])
def test_text_that_is_nested_too_deeply_is_refused_in_one_sentence(text: str) -> None:
    with pytest.raises(Usage, match=r"^crawl\.yaml: its values are nested too deeply\.$"):
        document(text, "crawl.yaml")
