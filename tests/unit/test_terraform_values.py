"""How the Terraform provider writes JSON, compares values and finds the attribute of an error."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orb_provider import json_text
from orb_provider.fields import UNKNOWN, FieldType, is_known
from orb_provider.findings import Refusal, attribute_path, refusal_findings
from orb_provider.kinds import RESOURCES, SOURCES
from orb_provider.kinds.config import Config
from orb_provider.kinds.crawl import Crawl
from orb_provider.kinds.schedule import Schedule
from orb_provider.lifecycle import Lifecycle, checked, means_same

JSONENCODE = [
    ({"b": 1, "a": [True, None, "x"]}, '{"a":[true,null,"x"],"b":1}'),
    ({"a": "<p>&é\u2028\u2029\t\n\\\"/"}, '{"a":"\\u003cp\\u003e\\u0026é\\u2028\\u2029\\t\\n\\\\\\"/"}'),
    ([1.0, 0.5, 1e21, 1e-7, -2.50], "[1,0.5,1000000000000000000000,0.0000001,-2.5]"),
    ({"😀": {}, "é": [], "z": ""}, '{"z":"","é":[],"😀":{}}'),
]  # fmt: skip
"""Values, and what `jsonencode` of Terraform 1.11 makes of them."""


@pytest.mark.parametrize(("value", "text"), JSONENCODE)
def test_json_is_written_as_jsonencode_writes_it(value: object, text: str) -> None:
    assert json_text.encode(value) == text


PLAIN = st.none() | st.booleans() | st.integers() | st.text()


@given(st.recursive(PLAIN, lambda part: st.lists(part) | st.dictionaries(st.text(), part)))
def test_written_json_is_read_back_and_stays_as_it_is(value: object) -> None:
    text = json_text.encode(value)
    assert json_text.decode(text) == value
    assert json_text.encode(json_text.decode(text)) == text
    assert json_text.same(text, json.dumps(value, indent=2))


@pytest.mark.parametrize("text", ["", "{", "NaN", '{"a": Infinity}', "[" * 100_000])
def test_text_that_is_no_json_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        json_text.decode(text)
    assert not json_text.same(text, "{}")


@pytest.mark.parametrize(
    ("field", "path"),
    [
        ("spec.scope.include[2]", ("spec",)),
        ("spec", ("spec",)),
        ("labels.team", ("labels", ("team",))),
        ("labels", ("labels",)),
        ("path.name", ("name",)),
        ("other.thing", ()),
        ("", ()),
        ("[0]", ()),
    ],
)
def test_field_of_the_api_is_found_in_an_attribute(field: str, path: tuple[object, ...]) -> None:
    assert attribute_path(field, Crawl.SHAPE) == path


def test_fields_of_a_whole_document_are_in_its_attribute() -> None:
    assert attribute_path("worker.max_visits", Config.SHAPE, Config.WHOLE) == ("config",)
    assert attribute_path("window.start", Schedule.SHAPE) == ("window", ("start",))


def test_each_wrong_field_is_an_error_of_its_own() -> None:
    errors = [("spec.seeds", "is required", "give one"), ("labels.a", "is too long", ""), ("", "Nothing fits", "")]
    found = refusal_findings(Refusal(422, "invalid", "the crawl spec cannot be used", "", errors), Crawl.SHAPE)
    assert [(each.summary, each.detail, each.path) for each in found] == [
        ("spec.seeds is required", "Give one.", ("spec",)),
        ("labels.a is too long", "The crawl spec cannot be used.", ("labels", ("a",))),
        ("the request: Nothing fits", "The crawl spec cannot be used.", ()),
    ]


@pytest.mark.parametrize(
    ("type", "one", "other", "same"),
    [
        (FieldType.TEXT, "a", "a", True),
        (FieldType.TEXT, "a", "A", False),
        (FieldType.TEXT, None, "", True),
        (FieldType.LABELS, None, {}, True),
        (FieldType.LABELS, {}, {"a": ""}, False),
        (FieldType.WHOLE, None, 0, False),
        (FieldType.NUMBER, "0.1", 0.1, True),
        (FieldType.NUMBER, 5, 5.0, True),
        (FieldType.NUMBER, "0.1", 0.2, False),
        (FieldType.NUMBER, None, 0, False),
        (FieldType.SWITCH, None, False, False),
        (FieldType.JSON, '{"a":1}', '{ "a": 1.0 }', True),
        (FieldType.JSON, '{"a":1}', '{"a":true}', False),
        (FieldType.TIME, "2030-01-01T00:00:00Z", "2030-01-01T01:00:00+01:00", True),
        (FieldType.TIME, "2030-01-01T00:00:00Z", "2030-01-01T00:00:00+01:00", False),
        (FieldType.TEXT, UNKNOWN, UNKNOWN, False),
        (FieldType.LABELS, {"a": UNKNOWN}, {"a": UNKNOWN}, False),
    ],
)
def test_values_are_compared_by_what_they_mean(type: FieldType, one: object, other: object, same: bool) -> None:
    field = next(each for kind in RESOURCES for each in kind.SHAPE.fields if each.type is type)
    assert means_same(field, one, other) is same
    assert means_same(field, other, one) is same


def test_unknown_parts_are_found_in_any_depth() -> None:
    assert is_known({"a": ["b", None, 1]})
    for value in (UNKNOWN, [UNKNOWN], {"a": UNKNOWN}, {"a": [{"b": UNKNOWN}]}):
        assert not is_known(value)


@pytest.mark.parametrize("kind", RESOURCES)
def test_kinds_are_declared_soundly(kind: type[Lifecycle]) -> None:
    """A computed attribute that an update may change is planned as unknown; only identity is stable."""
    names = [each.name for each in kind.SHAPE.fields]
    assert len(names) == len(set(names))
    assert {kind.KEY, "id"} <= set(names)
    assert {each.name for each in kind.SHAPE.fields if each.stable} <= {
        "id",
        "created_at",
        "kind",
        "schedule_id",
        "key_id",
        "secret",
    }
    for each in kind.SHAPE.fields:
        assert each.text.endswith("."), each.name
        assert each.settable or not (each.default or each.replaces or each.once), each.name


def test_names_of_resources_and_sources_are_unique() -> None:
    for shapes in ([each.SHAPE for each in RESOURCES], [each.SHAPE for each in SOURCES]):
        assert len({each.name for each in shapes}) == len(shapes)


def test_unknown_and_absent_values_are_not_wrong() -> None:
    for kind in RESOURCES:
        for value in (UNKNOWN, None):
            assert checked(kind.SHAPE, dict.fromkeys((each.name for each in kind.SHAPE.fields), value)) == []
