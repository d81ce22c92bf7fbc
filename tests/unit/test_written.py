"""YAML that people write, and YAML that is made to take long."""

import json
from contextlib import suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.ctl.output import as_yaml
from cli.terminal.exits import Usage
from cli.terminal.yaml_input import document, documents


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


def test_merged_mapping_that_merges_another_overrides_its_keys() -> None:
    """The key of the inner mapping was called repeated."""
    text = "defs: {base: &b {x: 1, y: 1}, mid: &m {<<: *b, x: 2}}\ntop: {<<: *m}\nlist: {<<: [*m, *b], y: 3}"
    assert document(text, "x.yaml") == {
        "defs": {"base": {"x": 1, "y": 1}, "mid": {"x": 2, "y": 1}},
        "top": {"x": 2, "y": 1},
        "list": {"x": 2, "y": 3},
    }
    for text in ("a: {x: 1, x: 2}", "a: &a {<<: {y: 1}, x: 1, x: 2}\nb: {<<: *a}", "- &a {x: 1, 'x': 2}\n- *a"):
        with pytest.raises(Usage, match=r"^x\.yaml:1:\d+: this is not YAML: the key 'x' is repeated in this mapping"):
            document(text, "x.yaml")


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("0x_", "'0x_' is not a valid int"), ("-0b_", "'-0b_' is not a valid int"),
        ("9" * 5000, "'9{39}…' is not a valid int"), ("0x" + "f" * 5000, "'0xf{37}…' is not a valid int"),
        ("!!int abc", "'abc' is not a valid int"), ("!!int ''", "'' is not a valid int"),
        ("!!float x", "'x' is not a valid float"), ("!!bool maybe", "'maybe' is not a valid bool"),
        ("!!timestamp x", "'x' is not a valid timestamp"), ("!!timestamp 2030-13-01", "is not a valid timestamp"),
        ("!!bool {=: maybe}", "this is not a valid bool"), ("!!timestamp {=: x}", "this is not a valid timestamp"),
        (".nan", "'.nan' is not a finite number"), ("-.inf", "'-.inf' is not a finite number"),
        ("1.0e+400", "is not a finite number"), ("!!float inf", "'inf' is not a finite number"),
        (r'"\ud800"', r"this text has half of a surrogate pair"), (r'"\ude00\ud83d"', "half of a surrogate pair"),
        ("{null: 1}", "the key 'null' is not text: put it in quotes"), ("{true: 1}", "the key 'true' is not text"),
        ("{? : 1}", "the key '' is not text"), (r'{"\udc80": 1}', "half of a surrogate pair"),
        ("{.inf: 1}", "'.inf' is not a finite number"), ("{!!binary eA==: 1}", "is not text"),
    ],
)  # fmt: skip
def test_value_that_no_request_can_have_is_refused_at_its_place(value: str, why: str) -> None:
    place = r"x\.yaml:2:\d+: this is not YAML: "
    with pytest.raises(Usage, match=f"^{place}.*{why}") as refused:
        document(f"a: 1\nb: {value}", "x.yaml")
    assert len(str(refused.value)) < 200
    assert str(refused.value).isprintable()


@pytest.mark.parametrize("text", [r'"\UFFFFFFFF"', r'"\U00110000"', "%YAML 1." + "9" * 5000 + "\n---\na"])
def test_escape_or_version_out_of_range_is_one_sentence(text: str) -> None:
    with pytest.raises(Usage, match=r"^x\.yaml:1:\d+: this is not YAML: a number or escape is out of range\.$"):
        document(text, "x.yaml")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (r'{"a": "\ud800"}', "1:7: .*half of a surrogate pair"), (r'{"\ud800": 1}', "1:2: .*half of a surrogate pair"),
        (f'{{"a": {"9" * 5000}}}', "1:7: .*is not a valid int"), ('{"a": .nan}', "1:7: .*is not a finite number"),
        ('{"a": -1.0e+400}', "1:7: .*is not a finite number"),
    ],
)  # fmt: skip
def test_json_value_that_no_request_can_have_is_refused_at_its_place(text: str, why: str) -> None:
    with pytest.raises(Usage, match=f"^x.json:{why}"):
        document(text, "x.json")


@pytest.mark.parametrize("text", [r'{"a": "\ud83d\ude00"}', r'a: "\ud83d\ude00"', r'a: "\U0001f600"'])
def test_surrogate_pair_is_its_character_in_json_and_yaml(text: str) -> None:
    assert document(text, "x.yaml") == {"a": "\U0001f600"}


def test_key_that_is_a_number_stays_one() -> None:
    assert document("{1: a, 1.5: b}", "x.yaml") == {1: "a", 1.5: "b"}


_WORDS = st.sampled_from(
    ["a", ": ", "\n", "- ", "{", "}", "[", "]", ",", "? ", "!!int ", "!!bool ", "!!float ", "!!set ", "!!omap ",
     "!!binary ", "!!timestamp ", "0x_", "0b_", "1", "-", ".inf", ".nan", "1e3", "~", "null", "true", "&a ", "*a", "<<",
     "=", '"', "'", "\\ud800", "\\U", "ffffffff", "%YAML ", "---", "|", ">", "\ud800", "\x00", " ", "2030-13-01"]
)  # fmt: skip


@given(st.lists(_WORDS, max_size=14).map("".join))
def test_text_of_any_kind_is_refused_or_can_be_sent(text: str) -> None:
    with suppress(Usage):
        msgspec.json.encode(documents(text, "x.yaml"))


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
