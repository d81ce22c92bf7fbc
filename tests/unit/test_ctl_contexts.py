"""Which masters are asked with which key; a stored key reaches nobody that it was not stored for."""

import os
import stat
from pathlib import Path

import pytest

from cli.ctl.contexts import Access, Contexts, addresses, chosen, default_path, load, save
from cli.terminal.exits import Usage

HOME = Access(("http://m1:1", "http://m2:1"), "stored")
STORED = Contexts("home", {"home": HOME, "work": Access(("https://work",), "other")})
NOTHING: dict[str, str | None] = {"server": None, "key": None, "context": None}


def test_a_flag_goes_before_a_variable_and_a_variable_before_the_file() -> None:
    assert chosen(NOTHING, {}, STORED) == HOME
    assert chosen({**NOTHING, "context": "work"}, {"ORB_CONTEXT": "home"}, STORED).servers == ("https://work",)
    assert chosen(NOTHING, {"ORB_CONTEXT": "work"}, STORED).key == "other"
    assert chosen(NOTHING, {"ORB_API_KEY": "mine"}, STORED) == Access(HOME.servers, "mine")
    assert chosen({**NOTHING, "key": "flag"}, {"ORB_API_KEY": "mine"}, STORED).key == "flag"
    assert chosen({**NOTHING, "server": "http://f"}, {"ORB_SERVER": "http://v"}, STORED).servers == ("http://f",)


SECRET = "orb_SECRETKEY"


def test_key_is_used_without_the_space_around_it() -> None:
    assert chosen(NOTHING, {"ORB_API_KEY": f"{SECRET}\r"}, STORED).key == SECRET
    assert chosen({**NOTHING, "key": f" {SECRET}\n"}, {"ORB_API_KEY": "mine"}, STORED).key == SECRET
    assert chosen({**NOTHING, "key": " "}, {"ORB_API_KEY": "\r"}, STORED) == HOME, "a blank key is no key"


@pytest.mark.parametrize("inside", ["\x00", "\r", "\n", "\x1b[31m", " ", "\x7f", "\xe9", "\udc80"])
def test_key_with_a_character_of_no_key_is_refused_unshown(inside: str) -> None:
    wrong = f"{SECRET}{inside}{SECRET}"
    stored = Contexts("home", {"home": Access(HOME.servers, wrong)})
    for flags, environ, contexts, origin in (
        ({**NOTHING, "key": wrong}, {}, STORED, "--key"),
        (NOTHING, {"ORB_API_KEY": wrong}, STORED, "ORB_API_KEY"),
        (NOTHING, {}, stored, "the context 'home'"),
        ({**NOTHING, "context": "home", "server": "m1:1"}, {}, stored, "the context 'home'"),
    ):
        with pytest.raises(Usage, match=f"the key from {origin} has characters that no API key has") as refused:
            chosen(flags, environ, contexts)
        assert SECRET not in str(refused.value)
        assert refused.value.__cause__ is None
    assert chosen({**NOTHING, "key": "k"}, {}, stored).key == "k", "a key that is not used is not looked at"


def test_a_stored_key_is_sent_to_its_own_servers_only() -> None:
    assert chosen({**NOTHING, "server": "http://elsewhere"}, {}, STORED) == Access(("http://elsewhere",), None)
    assert chosen({**NOTHING, "server": "m1:1,http://elsewhere"}, {}, STORED).key is None
    assert chosen({**NOTHING, "server": "http://m2:1/"}, {}, STORED) == Access(("http://m2:1",), "stored")


def test_who_names_no_server_is_told_how_to() -> None:
    with pytest.raises(Usage, match="orb ctl login --server"):
        chosen(NOTHING, {}, Contexts())
    with pytest.raises(Usage, match="'x' \\(known: home, work\\)"):
        chosen({**NOTHING, "context": "x"}, {}, STORED)


def test_addresses_are_those_of_masters() -> None:
    assert addresses([" m1:8081 ", "http://m1:8081/", "https://[::1]:9/x/"]) == ("http://m1:8081", "https://[::1]:9/x")
    for wrong in ("ftp://m1", "http://", "http://m1:99999", "http://u:p@m1", "m1/?q=1", "http://m1:0"):
        with pytest.raises(Usage, match="is not the address of a master"):
            addresses([wrong])
    with pytest.raises(Usage):
        addresses([" "])


def test_the_file_comes_back_as_it_was_and_nobody_else_may_read_it(tmp_path: Path) -> None:
    file = tmp_path / "a" / "orb" / "ctl.yaml"
    before = os.umask(0)
    try:
        save(file, STORED)
        save(file, STORED.using("work"))
    finally:
        os.umask(before)
    assert load(file) == Contexts("work", STORED.known)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert [each.name for each in file.parent.iterdir()] == ["ctl.yaml"]
    save(file, load(file).without("work"))
    assert load(file) == Contexts(None, {"home": HOME})


def test_a_file_that_others_may_read_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "ctl.yaml"
    save(file, STORED)
    file.chmod(0o640)
    with pytest.raises(Usage, match="chmod 600"):
        load(file)


@pytest.mark.parametrize(
    "text", ["[]", "contexts: 3", "contexts: {a: {servers: x}}", "contexts: {a: {servers: [x], keys: y}}", "{"]
)
def test_a_file_that_is_not_ours_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "ctl.yaml"
    file.write_text(text)
    file.chmod(0o600)
    with pytest.raises(Usage, match=r"ctl\.yaml"):
        load(file)


def test_where_there_is_no_file_nothing_is_known(tmp_path: Path) -> None:
    assert load(tmp_path / "none") == Contexts()
    (tmp_path / "empty").touch(0o600)
    assert load(tmp_path / "empty") == Contexts()


def test_the_file_lies_where_configuration_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/x")
    assert default_path({}) == Path("/home/x/.config/orb/ctl.yaml")
    assert default_path({"XDG_CONFIG_HOME": "/etc/x"}) == Path("/etc/x/orb/ctl.yaml")
    assert default_path({"XDG_CONFIG_HOME": "relative"}) == Path("/home/x/.config/orb/ctl.yaml")


def test_contexts_that_may_not_be_read_are_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "stat", denied)
    with pytest.raises(Usage, match=r"cannot read the context .*ctl\.yaml: Permission denied"):
        load(tmp_path / "ctl.yaml")


def test_blank_stored_key_is_no_key() -> None:
    stored = Contexts("home", {"home": Access(HOME.servers, " ")})
    assert chosen(NOTHING, {}, stored).key is None
