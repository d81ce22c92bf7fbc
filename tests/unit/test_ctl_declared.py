"""Files declare resources in every form in which they are shown or read elsewhere; what is none is pointed at."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cli.ctl.estate.declared import Declared, read
from cli.ctl.estate.kinds import KINDS
from cli.ctl.output import as_yaml
from cli.terminal.exits import Usage
from cli.terminal.yaml_input import documents

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


def test_every_kind_is_read_from_what_masters_show_in_order_of_references(tmp_path: Path) -> None:
    spec = {"role": "viewer", "kind": "certificate", "certificate": "dns:a.test"}
    of_set = {"kind": "seed-set", "crawl": "c"}
    shown: dict[str, dict[str, Any]] = {
        "api-key": {"name": "k", "id": "0", "spec": spec, "effective": {}, "key": "orb_0_x", "last_used_at": None},
        "schedule": {"name": "n", "id": 3, "verb": "start", "crawl": "c", "next_at": None, "history": []},
        "seed-set": {**of_set, "name": "s", "count": 1, "seeds": SPEC["seeds"], "command": "x", "changed_by": "y"},
        "crawl": {"name": "c", "id": 1, "state": "running", "spec": SPEC, "labels": {}, "desired": "running"},
        "host-policy": {"host": "Bücher.Example:8080", "effective": {}, "slots": 1, "command": "x", "changed_by": "y"},
        "exclusion": {"id": 7, "target": "HTTPS://a.test/%7Ex", "kind": "url_prefix", "reason": "r", "active": True},
        "config": {"revision": 3, "changed_at": None, "changed_by": "x", "config": {"log_level": None}},
    }
    for name, body in shown.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(body))
    found = [(each.title, each.body) for each in read([str(tmp_path)], [])]
    assert found == [
        ("config", {"log_level": None}),
        ("exclusion/https://a.test/~x", {"reason": "r"}),
        ("host-policy/xn--bcher-kva.example:8080", {"slots": 1}),
        ("crawl/c", {"spec": SPEC, "labels": {}, "desired": "running"}),
        ("seed-set/c/s", SPEC),
        ("schedule/n", {"verb": "start", "crawl": "c"}),
        ("api-key/k", spec),
    ]
    assert [kind.name for kind in KINDS] == list(reversed(shown))
    for name, body in shown.items():
        (tmp_path / f"{name}.json").write_text(json.dumps({**body, "kind": name}))
    assert [(each.title, each.body) for each in read([str(tmp_path)], [])] == found


def test_crawl_whose_spec_is_not_apart_has_its_other_fields_beside_it(tmp_path: Path) -> None:
    """They went into the spec, whose fields the master named as the only ones there are."""
    file = tmp_path / "a.yaml"
    file.write_text("name: c\nseeds: [http://a.test/]\nweight: 2\nlabels: {team: a}\ndesired: paused\nstart: false\n")
    [declared] = read([str(file)], [])
    assert declared.body == {
        "spec": {"seeds": ["http://a.test/"], "weight": 2},
        "labels": {"team": "a"},
        "desired": "paused",
        "start": False,
    }


def test_unknown_field_reaches_the_master_which_names_it(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("host: a.test\nslotts: 3\n---\nkind: exclusion\ntarget: '*.test'\nuntill: x")
    assert [(each.body, each.wrong is None) for each in read([str(file)], [])] == [
        ({"untill": "x"}, False),
        ({"slotts": 3}, True),
    ]


@pytest.mark.parametrize("document", ["host: a.test:443\nslots: 1", "target: A.test:80\nreason: x"])
def test_host_with_a_default_port_is_refused_by_the_client(tmp_path: Path, document: str) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(document)
    [declared] = read([str(file)], [])
    assert declared.wrong is not None
    assert "has the default port" in declared.wrong.message
    assert "write a.test" in declared.wrong.hint


def test_field_identity_of_a_key_is_the_kind_of_the_request(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("kind: api-key\nname: k\nrole: viewer\nidentity: certificate\n---\nname: l\nrole: admin\n")
    assert [(each.title, each.body, each.has_secret) for each in read([str(file)], [])] == [
        ("api-key/k", {"role": "viewer", "kind": "certificate"}, False),
        ("api-key/l", {"role": "admin"}, True),
    ]


@pytest.mark.parametrize(
    ("crawl", "name", "path"),
    [("A", "s", "crawl"), ("c", "", "name"), ("..", "s", "crawl"), ("c/d", "s", "name"), ("c", "s/..", "name")],
)
def test_crawl_and_name_of_a_seed_set_cannot_change_its_path(tmp_path: Path, crawl: str, name: str, path: str) -> None:
    file = tmp_path / "a.json"
    file.write_text(json.dumps({"kind": "seed-set", "crawl": crawl, "name": name, "seeds": []}))
    [declared] = read([str(file)], [])
    assert declared.wrong is not None
    assert declared.wrong.path == path


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8")),
    lambda values: st.lists(values, max_size=4) | st.dictionaries(st.text(st.characters(codec="utf-8")), values),
    max_leaves=12,
)  # fmt: skip


@given(body=st.dictionaries(st.text(st.characters(codec="utf-8")), JSON, max_size=4))
@example(body={"=": "=", "yes": "no", "1e3": "0x1f", "2030-01-01": "22:00", "~": "null", "<<": "&a *a"})
@example(body={"": "\x85\u2028", "x": "a\u2029 b\n c\r\n\t"})
@example(body={"x" * 200: "a b " * 6000, "pattern": "^/[^/]+: # !$", "\ufeff": "\U0001f577\x7f\x00"})
def test_what_is_written_as_yaml_is_read_as_the_same(body: dict[str, Any]) -> None:
    assert documents(f"---\n{as_yaml(body)}---\n{as_yaml({'x': 1})}", "x") == [body, {"x": 1}]


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
        ("kind: scedule\nname: a", "a.yaml: unknown kind 'scedule'; did you mean schedule?"),
        ("kind: hostpolicy\nhost: a", "a.yaml: unknown kind 'hostpolicy'; did you mean host-policy?"),
        ("kind: network\nname: a", "a.yaml: unknown kind 'network'; known: config, exclusion"),
        (
            "kind: 7\nname: a",
            "a.yaml: unknown kind 7; known: config, exclusion, host-policy, crawl, seed-set, schedule, api-key",
        ),
        ("kind: crawl\nname: a\nverb: start", "a.yaml is not a crawl: it has no `spec:` (or `seeds:`)."),
        ("kind: host-policy\nname: a.test", "a.yaml is not a host-policy: it has no `host:`."),
        ("host: 7", "a.yaml is not a host-policy: its `host:` is no text: quote it."),
        ("target: null\nreason: x", "a.yaml is not an exclusion: its `target:` is no text: quote it."),
        ("hots: a.test\nslots: 1", "it has no `name:`; `kind:` names another kind of resource."),
        ("kind: config\nlog_level: info", "a.yaml is not a config: it has no `config:` with the settings."),
        ("config: {}\nlog_level: info", "a.yaml: config: unknown field 'log_level'; settings are below `config:`."),
        ("kind: seed-set\nname: s\nseeds: []", "a.yaml is not a seed-set: it has no `crawl:`."),
        ("kind: seed-set\ncrawl: 7\nname: s", "a.yaml is not a seed-set: its `crawl:` is no text: quote it."),
        ("crawl: c\nname: s\nrole: viewer\n---\nkind: api-key\nname: s", "the api-key 's' is declared twice: in "),
        ("kind: api-key\nrole: viewer", "a.yaml is not an api-key: it has no `name:`."),
        ("kind: certificate\nname: s\nrole: viewer", "a.yaml: unknown kind 'certificate'"),
        ("host: A.test\n---\nhost: a.TEST", "the host-policy 'a.test' is declared twice: in "),
        ("target: A.test.\n---\nreason: x\ntarget: a.test", "the exclusion 'a.test' is declared twice: in "),
        ("config: {}\n---\nconfig: {}", "the config is declared twice: in "),
    ],
)
def test_what_is_no_declaration_is_pointed_at(tmp_path: Path, text: str, why: str) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(text)
    with pytest.raises(Usage) as refused:
        read([str(file)], [])
    assert why in str(refused.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(Usage, match=r"cannot read the declaration .*none: No such file"):
        read([str(tmp_path / "none")], [])
    (tmp_path / "x.yaml").write_bytes(b"\xff\xfe")
    with pytest.raises(Usage, match="is not UTF-8 text"):
        read([str(tmp_path / "x.yaml")], [])


def test_folder_of_declarations_that_may_not_be_read_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(_: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", denied)
    with pytest.raises(Usage, match=r"cannot read the declaration .*: Permission denied"):
        read([str(tmp_path)], ())
