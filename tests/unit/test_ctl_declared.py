"""Files declare crawls in every form in which they are shown or read elsewhere; what is none is pointed at."""

from pathlib import Path

import pytest

from cli.ctl.declared import Declared, read
from cli.terminal.exits import Usage

SPEC = {"seeds": ["https://example.org/"]}


def test_documents_lists_folders_and_standard_input_hold_crawls(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(
        "name: a\nlabels: {team: x}\nspec: {seeds: [https://example.org/]}\n---\nname: b\nseeds: [https://example.org/]\n"
    )
    (tmp_path / "b.json").write_text('{"items": [{"name": "c", "spec": {"seeds": ["https://example.org/"]}}]}')
    (tmp_path / "README").write_text("no crawl")
    found = read([str(tmp_path), "-"], ["---\n", "name: d\nstart: false\nspec: {seeds: [https://example.org/]}\n---\n"])
    assert found == [
        Declared("a", {"labels": {"team": "x"}, "spec": SPEC}, str(tmp_path / "a.yaml")),
        Declared("b", {"spec": SPEC}, f"{tmp_path / 'a.yaml'}, document 2"),
        Declared("c", {"spec": SPEC}, f"{tmp_path / 'b.json'}, items[0]"),
        Declared("d", {"start": False, "spec": SPEC}, "standard input"),
    ]


def test_fields_added_by_master_declare_nothing_and_the_rest_is_sent(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(
        "name: a\nid: 1\nrevision: 2\nstate: running\nallowed_verbs: []\n"
        "created_at: '2030-01-01'\nspec: {}\nbudget: 3\n"
    )
    [crawl] = read([str(file)], [])
    assert crawl.body == {"spec": {}, "budget": 3}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("spec: {}", "a.yaml is not a crawl: it has no `name:`"),
        ("name: a", "it has no `spec:` (or `seeds:`)"),
        ("name: a\nspec: 3", "it has no `spec:` (or `seeds:`)"),
        ("- name: a", "it is a list"),
        ("a\n---\n3", "it is a single value"),
        ("", "the files contain no crawl"),
        ("name: a\nspec: {}\n---\nname: a\nspec: {}", "declared twice: in "),
        ("name: a\nname: b\nspec: {}", "a.yaml:2:1: this is not YAML: the key 'name' is repeated in this mapping"),
        ("items:\n- name: a\n  spec: {}\n- 3", "a.yaml, items[1] is not a crawl"),
    ],
)
def test_what_is_no_declaration_is_pointed_at(tmp_path: Path, text: str, why: str) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(text)
    with pytest.raises(Usage) as refused:
        read([str(file)], [])
    assert why in str(refused.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(Usage, match=r"cannot read the crawl .*none: No such file"):
        read([str(tmp_path / "none")], [])
    (tmp_path / "x.yaml").write_bytes(b"\xff\xfe")
    with pytest.raises(Usage, match="is not UTF-8 text"):
        read([str(tmp_path / "x.yaml")], [])
