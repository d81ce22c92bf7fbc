"""show, export and warc on a folder whose every row and record is known."""

import argparse
import asyncio
import csv
import io
import json
import sqlite3
import subprocess
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from cli.data.summary import summarized
from cli.local.crawl import _ended, put_authorities
from cli.local.crawl_args import CrawlRequest
from cli.local.crawl_folder import CrawlFolder
from cli.local.finalize import complete_archive, is_finished
from cli.local.process_group import RunEnd, RunOutcome
from cli.main import main
from cli.terminal.exits import Exit
from shared.adapters.sql.admin.retention import SqlRetained
from shared.adapters.sql.catalog import crawl_reader as reading
from shared.adapters.sql.frontier.store import SqliteStore
from shared.domain.crawl.spec_parse import parse_spec
from shared.domain.frontier.page_history import ChangeKind, change_of, packed
from shared.domain.ops.retention import DAY_MS, RetainedKind, Retention
from tests.support.archive import stored_crawl
from tests.support.archive.crawl_folder import BODY, SEED, SPEC, TITLE, StoredCrawl, in_csv, made
from tests.support.archive.exchanges import sha1
from tests.support.database.store_tables import books
from tests.support.faults.disks import filled, small
from tests.support.processes.orb_command import ROOT, command_line
from workers.fetch.curl import default_ca_bundle

Orb = Callable[..., bytes]


@pytest.fixture
def crawl(tmp_path: Path) -> StoredCrawl:
    return made(tmp_path / "a.crawl")


@pytest.fixture
def orb(capfdbinary: pytest.CaptureFixture[bytes]) -> Orb:
    """The command's standard output, in this process; its exit code is asserted."""

    def run(*arguments: object, code: int = Exit.OK) -> bytes:
        ended = main([str(argument) for argument in arguments])
        out, err = capfdbinary.readouterr()
        assert ended == code, err.decode()
        return out if code == Exit.OK else err

    return run


def rows(out: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.splitlines()]


def test_the_folder_made_for_these_tests_balances(crawl: StoredCrawl) -> None:
    assert books(crawl.path / "crawl.db") == []


def test_pages_are_the_stored_ones_with_the_place_of_their_records(crawl: StoredCrawl, orb: Orb) -> None:
    pages = rows(orb("export", "pages", crawl.path))
    assert {page["url"] for page in pages} == set(crawl.pages)
    first = next(page for page in pages if page["url"] == SEED)
    assert first["title"] == TITLE
    assert first["digest"] == sha1(BODY + b"0")
    assert (first["status"], first["mime"], first["depth"], first["size"]) == (200, "text/html", 0, len(BODY) + 1)
    assert first["fetched_at"] == "2023-11-14T22:13:20.123Z"
    for page in pages:
        record = stored_crawl.record_at(crawl.path, page["segment"], page["offset"], page["length"])
        assert record.url == page["url"]


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_an_export_that_its_disk_does_not_take_ends_with_one_sentence(crawl: StoredCrawl, form: str) -> None:
    with Path("/dev/full").open("wb") as full:
        line = command_line("export", "urls", crawl.path, "--format", form)
        ended = subprocess.run(line, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (ended.returncode, ended.stderr.count("\n")) == (Exit.ENVIRONMENT, 1)
    assert ended.stderr.startswith("orb: the output was cut short (No space left on device); make room")


def test_urls_are_all_that_were_heard_of_with_their_state(crawl: StoredCrawl, orb: Orb) -> None:
    urls = {row["url"]: row for row in rows(orb("export", "urls", crawl.path))}
    assert len(urls) == len(crawl.pages) + 5
    assert (urls[f"{SEED}robots"]["state"], urls[f"{SEED}robots"]["reason"]) == ("excluded", "robots")
    assert (urls[f"{SEED}later"]["state"], urls[f"{SEED}later"]["status"]) == ("waiting", 500)
    assert urls[f"{SEED}queued"]["discovered_from"] == crawl.pages[-1]
    assert (urls["http://c.example/"]["host"], urls["http://c.example/"]["status"]) == ("c.example", None)
    assert urls[SEED]["discovered_from"] is None


def test_links_are_those_of_the_archive(crawl: StoredCrawl, orb: Orb) -> None:
    links = rows(orb("export", "links", crawl.path))
    assert {link["source"] for link in links} == set(crawl.pages)
    assert [link for link in links if link["source"] == SEED] == [
        {"source": SEED, "target": f"{SEED}x", "kind": "link", "found": "a/@href"},
        {"source": SEED, "target": f"{SEED}y", "kind": "redirect", "found": "Location:"},
    ]


@pytest.mark.parametrize("what", ["pages", "urls", "links"])
def test_every_format_says_the_same(crawl: StoredCrawl, orb: Orb, tmp_path: Path, what: str) -> None:
    plain = rows(orb("export", what, crawl.path))
    table = list(csv.DictReader(io.StringIO(orb("export", what, crawl.path, "--format", "csv").decode())))
    assert table == [{name: in_csv(value) for name, value in row.items()} for row in plain]
    file = tmp_path / "out.parquet"
    orb("export", what, crawl.path, "-o", file)
    assert rows(orb("export", what, crawl.path, "-o", "-")) == plain
    read = pyarrow.parquet.read_table(file).to_pylist()
    for row in read:
        if row.get("fetched_at") is not None:
            row["fetched_at"] = row["fetched_at"].isoformat(timespec="milliseconds").replace("+00:00", "Z")
    assert read == plain


def test_export_of_changes_says_up_to_when_they_are_deleted(crawl: StoredCrawl, tmp_path: Path) -> None:
    """Retention deletes the older of two changes. The note is on standard error, and the rows stay as they are."""
    database, file, now_ms = crawl.path / "crawl.db", tmp_path / "changes.jsonl", 1_800_000_000_000
    with closing(sqlite3.connect(database)) as connection, connection:
        crawl_id, host_id, key = connection.execute("SELECT crawl_id, host_id, fingerprint FROM fetches").fetchone()
        entry = packed([change_of(ChangeKind.CHANGED, host_id, key, 2)])
        connection.executemany(
            "INSERT INTO page_changes (crawl_id, at_ms, partition, number, entries) VALUES (?, ?, 0, 1, ?)",
            [(crawl_id, now_ms - age_ms, entry) for age_ms in (3 * DAY_MS, DAY_MS // 2)],
        )

    def exported() -> tuple[list[str], str]:
        line = command_line("export", "changes", crawl.path, "-o", file)
        ended = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=True)
        return [row["at"] for row in rows(file.read_bytes())], ended.stderr

    older, newer = "2027-01-12T08:00:00.000Z", "2027-01-14T20:00:00.000Z"
    assert exported() == ([older, newer], f"orb: 2 changes in {file}\n")

    async def forget() -> None:
        store = await SqliteStore.open(database)
        try:
            await SqlRetained(store.executor).forget(RetainedKind.CHANGES, Retention(changes_days=1), now_ms, "")
        finally:
            await store.close()

    asyncio.run(forget())
    note = "orb: the changes up to 2027-01-12T08:00:00Z are deleted (retention.changes_days)\n"
    assert exported() == ([newer], f"{note}orb: 1 changes in {file}\n")


def test_a_listing_longer_than_a_piece_has_every_row_once(
    tmp_path: Path, orb: Orb, monkeypatch: pytest.MonkeyPatch
) -> None:
    crawl = made(tmp_path / "a.crawl", pages=23)
    monkeypatch.setattr(reading, "PIECE", 5)
    urls = [row["url"] for row in rows(orb("export", "urls", crawl.path))]
    assert (len(urls), len(set(urls))) == (28, 28)
    pages = [row["url"] for row in rows(orb("export", "pages", crawl.path))]
    assert (len(pages), set(pages)) == (23, set(crawl.pages))


def test_a_file_that_cannot_be_written_leaves_nothing(crawl: StoredCrawl, orb: Orb, tmp_path: Path) -> None:
    said = orb("export", "pages", crawl.path, "-o", tmp_path / "no" / "pages.csv", code=Exit.USAGE)
    assert b"cannot write" in said
    assert list(tmp_path.glob("*.part")) == []


def test_show_names_what_was_left_out_and_what_was_cut(crawl: StoredCrawl, orb: Orb) -> None:
    shown = json.loads(orb("show", crawl.path, "--json"))
    assert (shown["left_out"], shown["truncated"]) == ({"max_links_per_page": 5, "other_host": 48}, {"length": 1})
    assert shown["left_out_examples"] == {"other_host": [{"url": "http://www.a.example/1", "page": SEED}]}
    lines = orb("show", crawl.path).decode().splitlines()
    told = next(line for line in lines if line.startswith("left out"))
    assert told.endswith(
        f"48 links to other hosts, such as http://www.a.example/1 on {SEED}; --scope domain follows them"
    )
    assert any(line.startswith("cut        1 page at fetch.max_body_bytes") for line in lines)
    page = orb("show", crawl.path, "--url", SEED).decode()
    assert "2 taken of 55 found; left out: other host 48, links per page 5" in page
    row = next(row for row in rows(orb("export", "pages", crawl.path)) if row["url"] == SEED)
    assert (row["truncated"], row["links"], row["links_found"]) == ("length", 2, 55)
    assert next(r for r in rows(orb("export", "urls", crawl.path)) if r["url"] == SEED)["truncated"] == "length"


def test_show_escapes_text_of_a_site_that_could_control_the_terminal(tmp_path: Path, orb: Orb) -> None:
    crawl = made(tmp_path / "a.crawl")
    with closing(sqlite3.connect(crawl.path / "crawl.db")) as connection:
        connection.execute("UPDATE fetches SET title = ?", ("\x1b]0;a\x07\x9b2J\u202eb",))
        connection.commit()
    page = orb("show", crawl.path, "--url", SEED).decode()
    assert r"\x1b]0;a\x07\x9b2J\u202eb" in page
    assert all(character == "\n" or character.isprintable() for character in page)


@pytest.mark.parametrize(
    ("url", "reason", "page"),
    [
        ("http://www.a.example/1", "other_host", SEED),  # an example
        (f"{SEED}1x", None, f"{SEED}1"),  # in the archive alone, and no rule keeps it out
    ],
)
def test_show_of_a_link_without_a_row_names_page_and_rule(
    crawl: StoredCrawl, orb: Orb, url: str, reason: str | None, page: str
) -> None:
    said = json.loads(orb("show", crawl.path, "--url", url, "--json"))
    assert (said["known"], said["left_out"], said["found_on"]) == (False, reason, page)
    assert page in orb("show", crawl.path, "--url", url).decode()


def test_show_of_a_url_that_no_page_names_doubts_what_was_cut(
    crawl: StoredCrawl, orb: Orb, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cli.data.unknown_url.MAX_PAGES_READ", 1)
    said = orb("show", crawl.path, "--url", f"{SEED}unseen").decode()
    assert "no link to it is known" in said
    assert "one of 5 links beyond extract.max_links_per_page (20000)" in said
    assert "the missing part of 1 page whose body was cut" in said
    assert "Only the links of 1 page were searched" in said


def test_show_of_an_unknown_seed_judges_it_as_a_seed(crawl: StoredCrawl, orb: Orb) -> None:
    with closing(sqlite3.connect(crawl.path / "crawl.db")) as database, database:
        spec = {"seeds": [{"url": SEED}, {"url": "http://late.example/"}]}
        database.execute("UPDATE crawl_revisions SET spec = ?", (json.dumps(spec),))
    shown = json.loads(orb("show", crawl.path, "--url", "http://late.example", "--json"))
    assert (shown["known"], shown["in_scope"], shown["linked_from"]) == (False, True, None)
    text = orb("show", crawl.path, "--url", "http://late.example/").decode()
    assert "It is a seed of the spec, and the crawl does not know it yet: repeat `orb crawl`" in text
    assert "evaluated as a seed of the spec:" in text


def test_the_index_lists_each_page_once_at_its_record(crawl: StoredCrawl) -> None:
    complete_archive(CrawlFolder(crawl.path))
    lines = list(stored_crawl.index_lines(crawl.path))
    assert sorted(line["url"] for line in lines) == sorted(crawl.pages)
    for line in lines:
        record = stored_crawl.record_at(crawl.path, line["filename"], int(line["offset"]), int(line["length"]))
        assert (record.url, record.digest) == (line["url"], f"sha1:{line['digest']}")


def test_index_lists_every_earlier_version_of_a_page(crawl: StoredCrawl, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "PIECE", 2)
    with closing(sqlite3.connect(crawl.path / "crawl.db")) as database, database:
        for version in (1, 2, 3):
            database.execute(
                "INSERT INTO page_versions (crawl_id, host_id, fingerprint, version, at_ms, status, size, mime, digest,"
                ' segment, "offset", length) SELECT crawl_id, host_id, fingerprint, ?, at_ms - ? * 86400000, status,'
                ' size, mime, digest, segment, "offset", length FROM fetches WHERE page',
                (version, 4 - version),
            )
    complete_archive(CrawlFolder(crawl.path))
    dates = [line.split(b" ", 2)[1][:8] for line in (crawl.path / "archive" / "index.cdxj").read_bytes().splitlines()]
    assert dates == [b"20231111", b"20231112", b"20231113", b"20231114"] * len(crawl.pages)


def test_warc_gives_the_body_the_head_and_the_record(crawl: StoredCrawl, orb: Orb, tmp_path: Path) -> None:
    assert orb("warc", crawl.path, SEED) == BODY + b"0"
    with_head = orb("warc", crawl.path, f"{SEED}1", "--headers")
    assert with_head.startswith(b"HTTP/1.1 200 ")
    assert with_head.endswith(b"\r\n\r\n" + BODY + b"1")
    record = tmp_path / "one.warc.gz"
    record.write_bytes(orb("warc", crawl.path, SEED, "--record"))
    stored_crawl.check_with_warcio([record])


@pytest.mark.parametrize(
    ("url", "why"),
    [
        (f"{SEED}robots", b"robots.txt forbids it"),
        ("http://nowhere.example/", b"does not know"),
        ("ftp://a.example/", b"not an http or https URL"),
    ],
)
def test_warc_of_what_is_not_stored_says_why(crawl: StoredCrawl, orb: Orb, url: str, why: bytes) -> None:
    assert why in orb("warc", crawl.path, url, code=Exit.USAGE)


def test_show_sums_up(crawl: StoredCrawl, orb: Orb) -> None:
    said = json.loads(orb("show", crawl.path, "--json"))
    assert (said["state"], said["finished_reason"], said["crawl"], said["revision"]) == (
        "finished",
        "max_pages",
        "docs",
        2,
    )
    assert (said["pages"], said["bytes"], said["active_seconds"]) == (3, 3 * (len(BODY) + 1), 8.0)
    assert said["identities"] == {"urls": 0, "links": 0}
    assert said["excluded"] == {"robots": 1}
    assert said["dead_letters"] == 1
    assert said["archive"]["segments"] == 1
    assert said["archive"]["bytes"] == sum(path.stat().st_size for path in stored_crawl.segments(crawl.path))
    assert (said["running"], said["pid"]) == (False, None)
    assert [host["host"] for host in said["top_hosts"]] == ["a.example", "c.example"]
    text = orb("show", crawl.path).decode()
    for expected in ("the page budget is used up", "200 3", "robots 1", "1 dead letters", "a.example"):
        assert expected in text


@pytest.mark.parametrize(
    ("path", "state", "why"),
    [
        ("", "done", "is stored: status 200, text/html"),
        ("robots", "excluded", "robots.txt forbids it"),
        ("gone", "failed", "killed 5 workers"),
        ("later", "waiting", "(try again)"),
        ("queued", "queued", "asked at most every 2 s"),
    ],
)
def test_show_url_says_state_and_why(crawl: StoredCrawl, orb: Orb, path: str, state: str, why: str) -> None:
    said = json.loads(orb("show", crawl.path, "--url", SEED + path, "--json"))
    assert (said["known"], said["state"]) == (True, state)
    assert why in " ".join(said["why"])
    text = orb("show", crawl.path, "--url", SEED + path).decode()
    assert state in text
    assert why in " ".join(text.split())


def test_show_url_tells_the_way_from_the_seed(crawl: StoredCrawl, orb: Orb) -> None:
    said = json.loads(orb("show", crawl.path, "--url", f"{SEED}queued", "--json"))
    assert said["discovered_from"] == [crawl.pages[-1], SEED]
    assert said["host"]["last_failure"] == "http_500 try again"


@pytest.mark.parametrize(
    ("url", "refused"),
    [
        (f"{SEED}private/x", "exclude_pattern"),
        ("http://other.example/", "other_host"),
        (f"{SEED}unseen", None),
    ],
)
def test_show_of_an_unseen_url_runs_the_rules_dry(crawl: StoredCrawl, orb: Orb, url: str, refused: str | None) -> None:
    said = json.loads(orb("show", crawl.path, "--url", url, "--json"))
    assert (said["known"], said["in_scope"]) == (False, refused is None)
    assert next((rule["rule"] for rule in said["rules"] if not rule["allowed"]), None) == refused
    assert b"the crawl has no row of it" in orb("show", crawl.path, "--url", url)


@pytest.mark.parametrize("command", [("show",), ("export", "pages"), ("warc",)])
def test_a_folder_that_is_no_crawls_is_named(orb: Orb, tmp_path: Path, command: tuple[str, ...]) -> None:
    rest = ("http://a.example/",) if command == ("warc",) else ()
    assert b"is no crawl's folder" in orb(*command, tmp_path, *rest, code=Exit.USAGE)
    assert b"there is no folder" in orb(*command, tmp_path / "none", *rest, code=Exit.USAGE)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "cluster.json").touch()
    assert b"read its crawls with `orb ctl`" in orb(*command, tmp_path, *rest, code=Exit.USAGE)


@pytest.mark.parametrize("begun", [False, True], ids=["of no bytes", "without tables"])
def test_a_database_that_the_master_is_about_to_fill_holds_no_crawl_yet(tmp_path: Path, begun: bool) -> None:
    """A command that looks whether its crawl is finished meets such a file while the master still starts."""
    folder = CrawlFolder(tmp_path)
    folder.database.touch()
    if begun:
        with closing(sqlite3.connect(folder.database)) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
    assert not is_finished(folder, parse_spec({"seeds": ["http://a.test/"]}))
    assert summarized(folder) is None


def test_a_database_of_another_version_is_said_to_be_one(orb: Orb, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "crawl.db")) as connection:
        connection.execute("CREATE TABLE something_else (id)")
    assert b"another version" in orb("show", tmp_path, code=Exit.ENVIRONMENT)


@pytest.mark.parametrize("finished", [True, False])
def test_disk_filled_at_crawl_end_fails_only_with_work_left(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], finished: bool
) -> None:
    there = made(tmp_path / "a.crawl", finished=finished)
    wanted = CrawlRequest(SPEC, CrawlFolder(there.path), 1, argparse.Namespace(json=False, workers=None))
    code = _ended(wanted, RunOutcome(RunEnd.FAILED, "the disk is full."), 1.0)
    err = capfd.readouterr().err
    assert code == (Exit.OK if finished else Exit.ENVIRONMENT)
    assert ("the disk is full" in err) != finished
    assert ("to go on:" in err) != finished
    assert (there.path / "archive" / "index.cdxj").stat().st_size > 0


def test_disk_without_a_byte_at_crawl_end_says_how_to_resume(
    tmp_path: Path, orb: Orb, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """Not even the index of the database's log has room then, without which nobody reads it."""
    with ExitStack() as stack:
        small(stack, tmp_path, 8)
        there = made(tmp_path / "a.crawl", finished=False)
        wanted = CrawlRequest(SPEC, CrawlFolder(there.path), 1, argparse.Namespace(json=False, workers=None))
        with filled(tmp_path):
            assert _ended(wanted, RunOutcome(RunEnd.INTERRUPTED), 1.0) == Exit.ENVIRONMENT
            err = capfdbinary.readouterr().err
            assert b"orb: the disk that holds the database is full: make room there" in err
            assert b"orb: to go on: " in err
            assert b"the database is full: make room there" in orb("show", there.path, code=Exit.ENVIRONMENT)
        assert _ended(wanted, RunOutcome(RunEnd.INTERRUPTED), 1.0) == Exit.RESUMABLE


@pytest.mark.parametrize("typed", ["a.example/1", "http://a.example/1", "A.EXAMPLE:80/1"])
def test_url_without_a_scheme_has_that_of_the_crawl(crawl: StoredCrawl, orb: Orb, typed: str) -> None:
    assert json.loads(orb("show", crawl.path, "--url", typed, "--json"))["url"] == f"{SEED}1"
    assert orb("warc", crawl.path, typed) == BODY + b"1"


def test_url_that_is_not_known_has_the_scheme_of_the_first_seed(crawl: StoredCrawl, orb: Orb) -> None:
    assert json.loads(orb("show", crawl.path, "--url", "other.example:8080/x", "--json"))["url"].startswith("http://")


def test_state_of_a_crawl_that_no_command_works_on_is_interrupted(tmp_path: Path, orb: Orb) -> None:
    folder = made(tmp_path / "a.crawl", finished=False).path
    assert json.loads(orb("show", folder, "--json"))["state"] == "interrupted"
    with CrawlFolder(folder).held():
        assert json.loads(orb("show", folder, "--json"))["state"] == "running"


def test_authorities_are_kept_beside_those_of_the_system(crawl: StoredCrawl, tmp_path: Path) -> None:
    folder, own = CrawlFolder(crawl.path), tmp_path / "own.pem"
    own.write_text("-----BEGIN CERTIFICATE-----\nours\n-----END CERTIFICATE-----")
    put_authorities(folder, None)
    assert not folder.authorities.exists()
    put_authorities(folder, own.read_bytes())
    assert folder.authorities.read_bytes().endswith(own.read_bytes() + b"\n")
    assert folder.authorities.read_bytes().startswith(Path(default_ca_bundle()).read_bytes().strip())
    put_authorities(folder, None)
    assert folder.authorities.exists(), "a later command keeps them"
    put_authorities(folder, b"")
    assert not folder.authorities.exists()
