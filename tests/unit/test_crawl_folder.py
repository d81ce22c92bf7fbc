"""The folder of a crawl: nobody else's files are touched, one run at a time, starting over leaves nothing."""

import os
from pathlib import Path

import pytest

from cli.local.crawl_folder import NAMES, RENEWAL, CrawlFolder, running
from cli.terminal.exits import Environment, Usage
from shared.adapters.local.suffixes import SNAPSHOT
from shared.domain.crawl.spec_parse import parse_spec

SPEC = parse_spec({"seeds": ["https://example.org/"]})


@pytest.fixture
def folder(tmp_path: Path) -> CrawlFolder:
    made = CrawlFolder(tmp_path / "a.crawl")
    made.make()
    return made


def test_an_empty_or_own_folder_is_taken(folder: CrawlFolder) -> None:
    folder.make()
    with folder.held():
        pass
    folder.make()
    folder.put_spec(SPEC)
    (folder.path / "pages.jsonl").touch()
    folder.make()
    assert folder.spec() == SPEC


def test_a_folder_with_other_files_is_refused_untouched(tmp_path: Path) -> None:
    for name in ("archive", "logs", "letters"):
        (tmp_path / name).mkdir()
    with pytest.raises(Usage, match=r"holds files that are no crawl's \(archive, letters, logs\)"):
        CrawlFolder(tmp_path).make()
    assert {entry.name for entry in tmp_path.iterdir()} == {"archive", "logs", "letters"}


def test_a_file_in_its_place_is_an_error_of_the_environment(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    with pytest.raises(Environment, match="cannot make the folder"):
        CrawlFolder(tmp_path / "a").make()


def test_a_full_disk_is_told_before_anything_is_begun(folder: CrawlFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CrawlFolder, "free_bytes", lambda self: 3 << 20)
    with pytest.raises(Environment, match="only 3 MiB are free"):
        folder.make()


def test_a_second_run_is_told_who_is_at_work(folder: CrawlFolder) -> None:
    with folder.held(), pytest.raises(Environment, match=rf"is at work in .* \(process {os.getpid()}\)"), folder.held():
        pass
    with folder.held():
        assert running(folder) == os.getpid()
    assert running(folder) is None


def test_starting_over_removes_what_runs_made_and_nothing_else(folder: CrawlFolder, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "kept").touch()
    folder.put_spec(SPEC)
    for name in NAMES:
        if name == "archive":
            (folder.path / name).symlink_to(elsewhere)
        elif name.startswith("crawl.db") or name == SNAPSHOT:
            (folder.path / name).touch()
        else:
            (folder.path / name).mkdir()
            (folder.path / name / "inside").touch()
    (folder.path / "pages.jsonl").touch()
    with folder.held():
        assert folder.renew() == ["pages.jsonl"]
    assert {entry.name for entry in folder.path.iterdir()} == {"pages.jsonl", "lock"}
    assert (elsewhere / "kept").exists()


def test_an_interrupted_start_over_is_seen_and_finished(folder: CrawlFolder) -> None:
    folder.put_spec(SPEC)
    (folder.path / RENEWAL).touch()
    (folder.path / "crawl.db").touch()
    assert folder.renewing()
    folder.make()
    folder.renew()
    assert not folder.renewing()
    assert list(folder.path.iterdir()) == []


def test_the_brokers_messages_go_before_the_database(folder: CrawlFolder) -> None:
    """Its messages would be taken for those of the crawl that begins anew under the same number."""
    assert NAMES.index("nats") < NAMES.index("crawl.db")


def test_a_damaged_spec_is_told(folder: CrawlFolder) -> None:
    folder.spec_file.write_text("{")
    with pytest.raises(Environment, match=r"cannot read .*spec\.json"):
        folder.spec()


def denied(*_: object, **__: object) -> None:
    raise PermissionError(13, "Permission denied")


def test_folder_of_another_user_is_one_sentence_without_advice_to_replace_it(
    folder: CrawlFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.put_spec(SPEC)
    monkeypatch.setattr(Path, "stat", denied)
    with pytest.raises(Environment, match=r"cannot read .*a\.crawl: Permission denied\.$"):
        folder.opened()
    monkeypatch.setattr(Path, "read_bytes", denied)
    with pytest.raises(Environment, match=r"cannot read .*spec\.json: Permission denied\.$"):
        folder.spec()
