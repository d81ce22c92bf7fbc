"""The frame of the `orb` command: exit codes, one sentence per error, nothing imported that was not asked for."""

import io
import json
import os
import re
import shutil
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest

from cli.main import COMMANDS, main, parser_of
from cli.terminal.exits import Exit
from workers.parse.compiled import chosen


def test_unknown_command_is_a_usage_error_in_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["crwal"]) == Exit.USAGE
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "orb: there is no command 'crwal' (did you mean `orb crawl`?); see `orb --help`\n"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("frobnicate", "there is no command 'frobnicate'; see `orb --help`"),
        ("--hlep", "there is no flag --hlep (did you mean `--help`?); see `orb --help`"),
        ("crawl a.test --allow-nets 10.0.0.0/8", "there is no flag --allow-nets (did you mean `--allow-net`?); see"),
        ("crawl a.test --max-page=9 --fersh", "there is no flag --fersh (did you mean `--fresh`?); see `orb crawl"),
        ("crawl a.test --max-page=9 --fersh", "there is no flag --max-page (did you mean `--max-pages`?); there is"),
        ("show a b", "unexpected argument 'b'; see `orb show --help`"),
        ("ctl export pages --format csv site more", "unexpected argument 'more'; see `orb ctl export --help`"),
        ("ctl exclude a.example --reason asked by mail", "unexpected argument 'by': write names before flags, and"),
        ("crawl https://a.test/ --exclude a.pdf b.pdf", "unexpected argument 'b.pdf': write names before flags, and"),
        ("ctl get crawl -o name -x", "there is no flag -x; see `orb ctl get --help`"),
        ("ctl gett", "`orb ctl` has no command 'gett' (did you mean `orb ctl get`?); see `orb ctl --help`"),
        (
            "ctl seeds ad docs",
            "`orb ctl seeds` has no command 'ad' (did you mean `orb ctl seeds add`?); see `orb ctl seeds",
        ),
        ("ctl get crawls --outptu json", "there is no flag --outptu (did you mean `--output`?); see `orb ctl get --h"),
        ("ctl get crawls -o jsn", "wide, json, yaml, name, got 'jsn' (did you mean `json`?); see `orb ctl get --help`"),
    ],
)
def test_what_was_perhaps_meant_is_said(given: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(given.split()) == Exit.USAGE
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    assert said in captured.err


@pytest.mark.parametrize(
    ("given", "name", "expected"),
    [
        ("ctl get crawl -o name site", "names", ["site"]),
        ("ctl get crawl a -o name b -l x=y c", "names", ["a", "b", "c"]),
        ("ctl get crawl -o name -- -a", "names", ["-a"]),
        ("ctl get crawl a -o name b -- -c --", "names", ["a", "b", "-c", "--"]),
        ("ctl create zz --max-pages 3 https://a.test/", "names", ["zz", "https://a.test/"]),
        ("ctl seeds add site --label team=b https://a.test/", "urls", ["https://a.test/"]),
        ("ctl delete crawl --ignore-missing zz", "names", ["zz"]),
        ("ctl export pages --format csv site", "crawl", "site"),
        ("crawl https://a.test/ --delay 1 https://b.test/", "urls", ["https://a.test/", "https://b.test/"]),
    ],
)
def test_words_after_a_flag_are_names_as_before_it(given: str, name: str, expected: object) -> None:
    words = given.split()
    assert getattr(parser_of(words[:1]).parse_args(words), name) == expected


@pytest.mark.parametrize(
    ("setting", "code", "expected"),
    [
        ("python", Exit.OK, "tag scanner: python (ORB_TAG_SCANNER=python)"),
        ("", Exit.OK, f"tag scanner: {chosen({})}"),
        ("fast", Exit.ENVIRONMENT, "orb: ORB_TAG_SCANNER is auto, python or compiled, not 'fast'."),
    ],
)
def test_version_says_which_tag_scanner_runs(
    setting: str, code: Exit, expected: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ORB_TAG_SCANNER", setting)
    assert main(["version"]) == code
    assert expected in "".join(capsys.readouterr()).splitlines()


@pytest.mark.parametrize("argv", [["version", "--nonsense"], ["--nonsense"], []])
def test_wrong_arguments_are_exit_code_2(argv: list[str]) -> None:
    assert main(argv) == Exit.USAGE


def test_help_and_version_are_exit_code_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == Exit.OK
    listed = capsys.readouterr().out
    assert [name for name in COMMANDS if re.search(rf"\n    {name}\s", listed) is None] == []
    assert main(["--version"]) == Exit.OK


def test_every_command_has_its_module_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    for name, (module, _) in COMMANDS.items():
        assert callable(import_module(module).run)
        if module != "cli.dev.develop":  # these hand --help on to their tool
            assert main([name, "--help"]) == Exit.OK
            assert f"orb {name}" in capsys.readouterr().out


def test_developer_commands_outside_a_clone_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("cli.dev.develop._ROOT", tmp_path)
    assert main(["lint"]) == Exit.ENVIRONMENT
    assert "in a clone" in capsys.readouterr().err


SHORT = ("-m", "not slow and (smoke or not (e2e or faults or long))", "--hypothesis-profile", "short")
NOT_SLOW = ("-m", "not slow")


@pytest.mark.parametrize(
    ("given", "chosen"),
    [
        ((), SHORT),
        (("-n", "1", "-k", "kills"), (*SHORT, "-n", "1", "-k", "kills")),
        (("--all", "--durations=40"), (*NOT_SLOW, "--durations=40")),
        (
            ("tests/e2e/test_up.py::test_every_process_that_dies_is_started_again_and_told_of", "-x"),
            (*NOT_SLOW, "tests/e2e/test_up.py::test_every_process_that_dies_is_started_again_and_told_of", "-x"),
        ),
        (("-m", "e2e"), (*NOT_SLOW, "-m", "e2e")),
    ],
)
def test_command_test_runs_the_short_set_unless_told_otherwise(
    given: tuple[str, ...], chosen: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[tuple[str, ...]] = []

    def python(*arguments: str, **_added: str) -> int:
        ran.append(arguments)
        return 0

    monkeypatch.setattr("tests.support.developer_commands._python", python)
    assert main(["test", *given]) == Exit.OK
    cores = len(os.sched_getaffinity(0))
    processes = cores + max(1, cores // 2) if chosen[: len(SHORT)] == SHORT else 2 * cores
    assert ran == [("-m", "pytest", "-n", str(processes), "--dist", "worksteal", *chosen)]


@pytest.mark.parametrize(
    ("given", "free", "temporary", "in_memory"),
    [
        ([], 1 << 62, None, True),
        ([], 0, None, False),
        ([], 1 << 62, "/var/tmp", False),
        (["--all"], 1 << 62, None, False),
        (["tests/unit"], 1 << 62, None, False),
    ],
)
def test_command_test_keeps_files_in_memory_for_the_short_set(
    given: list[str],
    free: int,
    temporary: str | None,
    in_memory: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folders: list[Path | None] = []

    def python(*_arguments: str, **added: str) -> int:
        folder = Path(added["TMPDIR"]) if "TMPDIR" in added else None
        assert folder is None or folder.is_dir()
        folders.append(folder)
        return 0

    if temporary is None:
        monkeypatch.delenv("TMPDIR", raising=False)
    else:
        monkeypatch.setenv("TMPDIR", temporary)
    monkeypatch.setattr("tests.support.developer_commands._MEMORY", tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: SimpleNamespace(free=free))
    monkeypatch.setattr("tests.support.developer_commands._python", python)
    assert main(["test", *given]) == Exit.OK
    (folder,) = folders
    assert (folder is not None) == in_memory
    assert list(tmp_path.iterdir()) == [], "the folder is removed"


@pytest.mark.parametrize(
    ("given", "run"),
    [
        ((), ("pytest", "-m", "faults")),
        (("-k", "kills"), ("pytest", "-m", "faults", "-k", "kills")),
        (("--seed", "7"), ("tests.support.faults.exploration", "--seed", "7")),
        (("--sqlite", "--rounds=9"), ("tests.support.faults.exploration", "--sqlite", "--rounds=9")),
    ],
)
def test_faults_runs_the_tests_and_explores_where_a_seed_or_rounds_are_told(
    given: tuple[str, ...], run: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, ...]] = []

    def python(*arguments: str) -> int:
        asked.append(arguments)
        return 0

    monkeypatch.setattr("tests.support.developer_commands._python", python)
    assert main(["faults", *given]) == Exit.OK
    assert asked == [("-m", *run)]


def test_line_reaches_an_unbuffered_output_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """With PYTHONUNBUFFERED=1 standard output has no buffer; a reader of lines waits for their ends."""
    seen: list[bytes] = []
    reader, writer = os.pipe()
    with open(reader, "rb", buffering=0) as read, open(writer, "wb", buffering=0) as raw:

        def run(arguments: object) -> int:
            for line in ("first", "second"):
                print(line)
                seen.append(read.read(100) or b"")
            return 0

        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, write_through=True))
        monkeypatch.setattr("cli.dev.version.run", run)
        assert main(["version"]) == Exit.OK
    assert seen == [b"first\n", b"second\n"]


def test_a_full_disk_elsewhere_is_not_said_to_be_the_outputs(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Whoever hears of the output moves the output, and wonders."""

    def run(arguments: object) -> int:
        print("begun")
        return Path("/dev/full").write_text("x")

    monkeypatch.setattr("cli.dev.version.run", run)
    assert main(["version"]) == Exit.ENVIRONMENT
    out, err = capfd.readouterr()
    assert out == "begun\n", "what was said before is not taken back"
    said = "a file could not be written (No space left on device); make room there, and run the command again."
    assert err == f"orb: {said}\n"


def test_any_other_error_of_the_system_is_told_as_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cli.dev.version.run", lambda arguments: Path("/proc/none").mkdir())
    with pytest.raises(FileNotFoundError):
        main(["version"])


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("crawl", "--json"), Exit.USAGE, "no URL given"),
        (("crawl", "--json", "--max-pages", "many", "a.test"), Exit.USAGE, "many"),
        (("crawl", "https://a.test/", "--out", "/proc/none", "--json"), Exit.ENVIRONMENT, "/proc/none"),
        (("show", "nowhere", "--json"), Exit.USAGE, "nowhere"),
        (("config", "show", "worker", "--no-such-flag", "--json"), Exit.USAGE, "--no-such-flag"),
        (("db", "check", "--json", "--database", "nowhere.db"), Exit.ENVIRONMENT, "nowhere.db"),
        (("up", "--json", "--masters", "0"), Exit.USAGE, "--masters"),
    ],
)
def test_json_object_is_written_when_the_command_cannot_begin(
    arguments: tuple[str, ...], code: Exit, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == code
    out, err = capsys.readouterr()
    document = json.loads(out)
    assert (document["end"], document["exit_code"]) == ("failed", code)
    assert said in document["message"]
    assert err.rstrip() == f"orb: {document['message']}"


@pytest.mark.parametrize("out", ["here", "here/below"])
def test_crawl_into_a_file_is_refused_by_its_name(out: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "here").write_text("a note")
    assert main(["crawl", "https://a.test/", "--out", f"{tmp_path}/{out}"]) == Exit.ENVIRONMENT
    assert re.fullmatch(rf"orb: cannot make the folder {tmp_path}/{out}: .*--out\.\n", capsys.readouterr().err)


def test_crawl_into_a_folder_that_is_not_utf8_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = os.fsdecode(os.fsencode(tmp_path) + b"/\xff")
    assert main(["crawl", "https://a.test/", "--out", folder, "--json"]) == Exit.ENVIRONMENT
    assert "not UTF-8 text" in json.loads(capsys.readouterr().out)["message"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("command", "code"), [("crawl", Exit.RESUMABLE), ("show", 130)])
def test_ctrl_c_before_a_crawl_begins_is_told_as_an_interruption(
    command: str, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(arguments: object) -> int:
        raise KeyboardInterrupt

    module = import_module(COMMANDS[command][0])
    monkeypatch.setattr(module, "run", interrupted)
    assert main([command, "https://a.test/", "--json"]) == code
    out, err = capsys.readouterr()
    if command == "crawl":
        document = json.loads(out)
        assert (document["end"], document["exit_code"]) == ("interrupted", code)
        assert err == f"orb: {document['message']}\n"
    else:
        assert (out, err) == ("", "")


def test_output_takes_characters_that_its_encoding_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = 'Zürich \N{GRINNING FACE} \udcff "x"'

    def run(arguments: object) -> int:
        print(json.dumps(text, ensure_ascii=False))
        return 0

    monkeypatch.setattr("cli.dev.version.run", run)
    for encoding in ("ascii", "latin-1", "utf-8"):
        with (tmp_path / encoding).open("w", encoding=encoding) as output:
            monkeypatch.setattr(sys, "stdout", output)
            assert main(["version"]) == Exit.OK
        assert json.loads((tmp_path / encoding).read_text(encoding)) == text


def test_errors_without_json_leave_standard_output_empty(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["crawl"]) == Exit.USAGE
    assert main(["show", "--", "--json"]) == Exit.USAGE  # a folder of that name
    assert capsys.readouterr().out == ""
