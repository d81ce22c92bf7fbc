"""`orb crawl` as a person uses it: what it prints, how it ends, and what the next command finds."""

import json
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from fcntl import ioctl
from pathlib import Path
from typing import Any, Final

import psutil
import pytest

from shared.runtime.supervise import dying_with
from tests.support.archive import stored_crawl
from tests.support.processes.orb_command import ROOT, command_line, export
from tests.support.web import log_judge
from tests.support.web.file_site import FileTree
from tests.support.web.synthetic_site import SyntheticSite
from tests.support.web.web_server import Web
from workers.parse.compiled import chosen

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

Served = Callable[..., Web]
OPEN: Final = ("--allow-net", "127.0.0.0/8", "--scope", "any")
SMALL: Final = SyntheticSite(pages=30, hosts=2, missing=60, private=60)
SLOW: Final = SyntheticSite(pages=120, hosts=2, latency_s=(0.02,))
WAIT_S: Final = 90.0


def orb(*arguments: str | Path, code: int = 0, cwd: Path = ROOT) -> tuple[str, str]:
    """What a command wrote to stdout and stderr."""
    ended = subprocess.run(
        command_line(*arguments),
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert ended.returncode == code, f"{ended.returncode}: {ended.stdout}{ended.stderr}"
    return ended.stdout, ended.stderr


@contextmanager
def begun(*arguments: str | Path, by: str = "env") -> Iterator[subprocess.Popen[str]]:
    """A command that is under way, started by the program `by`; a block's end leaves nothing of it behind."""
    process = subprocess.Popen(
        [*dying_with(os.getpid()), shutil.which(by) or by, *command_line(*arguments)],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=WAIT_S)


def pages_of(folder: Path) -> list[str]:
    return sorted(row["url"] for row in export("pages", folder))


def whole(folder: Path, served: Web, site: SyntheticSite) -> None:
    """The folder holds every page of the site once, and its books balance."""
    assert pages_of(folder) == sorted(site.expected_pages(served.origins))
    assert sorted(line["url"] for line in stored_crawl.index_lines(folder) if line["status"] == "200") == pages_of(
        folder
    )
    stored_crawl.check_with_warcio(stored_crawl.segments(folder))
    shown: dict[str, Any] = json.loads(orb("show", folder, "--json")[0])
    assert (shown["state"], shown["identities"], shown["running"]) == ("finished", {"urls": 0, "links": 0}, False)
    assert list((folder / "archive").glob("*.open")) == []


@pytest.mark.smoke
def test_a_crawl_finishes_and_json_is_all_there_is_on_stdout(web: Served, tmp_path: Path) -> None:
    served, out = web(SMALL), tmp_path / "a.crawl"
    said, beside = orb("crawl", f"{served.origins[0]}/", "--delay", "0", *OPEN, "--out", out, "--json")
    summary = json.loads(said)
    assert said.count("\n") == 1
    assert (summary["end"], summary["exit_code"], summary["state"]) == ("finished", 0, "finished")
    assert summary["pages"] == len(SMALL.expected_pages(served.origins)) == summary["counters"]["pages"]
    assert summary["seconds"] > 0
    assert summary["status"]["200"] == summary["pages"]
    assert "crawling into" in beside
    assert summary["tag_scanner"] == chosen(os.environ).name
    whole(out, served, SMALL)
    assert {entry.name for entry in out.iterdir()} <= {
        *("archive", "crawl.db", "crawl.db-shm", "crawl.db-wal", "lock", "logs", "nats"),
        *("public_suffixes.dat", "spec.json", "specs"),
    }
    # Finished is finished: the same command again asks nobody for anything.
    before = len(served.log())
    again, told = orb("crawl", f"{served.origins[0]}/", "--delay", "0", *OPEN, "--out", out)
    assert (again, len(served.log())) == ("", before)
    assert f"is finished with {summary['pages']} pages" in told
    assert "--fresh" in told


def test_the_summary_for_people_names_what_happened(web: Served, tmp_path: Path) -> None:
    served, out = web(SMALL), tmp_path / "a.crawl"
    said, beside = orb("crawl", f"{served.origins[0]}/", "--delay", "0", *OPEN, "--out", out, "--no-progress")
    scanner = str(chosen(os.environ))
    for expected in ("state      finished: every URL in scope was tried", "answers    200 ", f"scanner    {scanner}\n"):
        assert expected in said
    assert str(out) in said
    started = [json.loads(line) for path in (out / "logs").glob("worker-*") for line in path.read_text().splitlines()]
    assert {line["tag_scanner"] for line in started if line["event"] == "worker.started"} == {scanner}
    assert len(beside.splitlines()) == 1


def test_the_folder_is_named_after_the_host_in_the_current_directory(web: Served, tmp_path: Path) -> None:
    served = web(SMALL)
    seed = f"{served.origins[0]}/"
    orb("crawl", seed, "--delay", "0", *OPEN, "--max-depth", "0", "--json", cwd=tmp_path)
    assert [entry.name for entry in tmp_path.glob("*.crawl")] == [served.hosts[0].replace(":", "-") + ".crawl"]


def test_a_second_run_on_one_folder_is_refused_and_the_first_goes_on(web: Served, tmp_path: Path) -> None:
    served, out = web(SLOW), tmp_path / "a.crawl"
    arguments = ("crawl", f"{served.origins[0]}/", "--delay", "1", *OPEN, "--out", out, "--json")
    with begun(*arguments) as first:
        served.wait_served(1)
        _, said = orb(*arguments, code=4)
        assert f"is at work in {out} (process {first.pid})" in said
        shown = json.loads(orb("show", out, "--json")[0])
        assert (shown["running"], shown["pid"]) == (True, first.pid)
        orb("crawl", "--out", out, "--fresh", code=4)
        first.send_signal(signal.SIGINT)
        assert first.wait(WAIT_S) == 3
    orb("crawl", "--out", out, "--delay", "0", "--json")
    whole(out, served, SLOW)


@pytest.mark.smoke
def test_ctrl_c_drains_says_how_to_go_on_and_that_command_does(web: Served, tmp_path: Path) -> None:
    served, out = web(SLOW), tmp_path / "a.crawl"
    served.answer(60)
    with begun("crawl", f"{served.origins[0]}/", "--delay", "0.05", *OPEN, "--out", out) as first:
        served.wait_served(10)
        first.send_signal(signal.SIGINT)
        served.answer(None)
        said, beside = first.communicate(timeout=WAIT_S)
        assert first.returncode == 3, beside
    assert "stopping" in beside
    assert f"to go on: orb crawl --out {out}" in beside
    assert "state      interrupted" in said
    done = pages_of(out)
    assert len(done) >= 5
    assert sorted(line["url"] for line in stored_crawl.index_lines(out) if line["status"] == "200") == done
    summary = json.loads(orb("crawl", "--out", out, "--json")[0])
    assert summary["end"] == "finished"
    whole(out, served, SLOW)
    # What was reported before the end is not fetched again.
    assert log_judge.fetched_more_than_once(served.log()) == {}


def test_crawl_under_nohup_finishes_after_its_terminal_is_closed(web: Served, tmp_path: Path) -> None:
    served, out = web(SMALL), tmp_path / "a.crawl"
    served.answer(5)
    with begun("crawl", f"{served.origins[0]}/", "--delay", "0", *OPEN, "--out", out, by="nohup") as first:
        served.wait_served(5)
        first.send_signal(signal.SIGHUP)
        served.answer(None)
        _, beside = first.communicate(timeout=WAIT_S)
        assert first.returncode == 0, beside
    whole(out, served, SMALL)


def test_a_second_ctrl_c_stops_at_once_and_is_resumable(web: Served, tmp_path: Path) -> None:
    served, out = web(SLOW), tmp_path / "a.crawl"
    served.answer(60)
    with begun("crawl", f"{served.origins[0]}/", "--delay", "0.05", *OPEN, "--out", out) as first:
        served.wait_served(5)
        family = psutil.Process(first.pid).children(recursive=True)
        first.send_signal(signal.SIGINT)
        first.send_signal(signal.SIGTERM)
        served.answer(None)
        _, beside = first.communicate(timeout=WAIT_S)
        assert first.returncode == 3, beside
    assert "to go on: orb crawl --out" in beside
    assert psutil.wait_procs(family, 30)[1] == []
    orb("crawl", "--out", out, "--delay", "0", "--json")
    whole(out, served, SLOW)


@pytest.mark.smoke
def test_a_killed_command_takes_its_processes_along_and_the_next_resumes(web: Served, tmp_path: Path) -> None:
    served, out = web(SLOW), tmp_path / "a.crawl"
    arguments = ("crawl", f"{served.origins[0]}/", "--delay", "0.02", *OPEN, "--out", out, "--json")
    served.answer(60)
    with begun(*arguments) as first:
        served.wait_served(10)
        family = psutil.Process(first.pid).children(recursive=True)
        assert len(family) >= 3
        first.kill()
        assert psutil.wait_procs(family, 30)[1] == []
    served.answer(None)
    assert json.loads(orb(*arguments)[0])["end"] == "finished"
    whole(out, served, SLOW)


def test_a_changed_spec_goes_on_in_the_same_folder(web: Served, tmp_path: Path) -> None:
    served, out = web(SMALL), tmp_path / "a.crawl"
    seed = f"{served.origins[0]}/"
    first = json.loads(orb("crawl", seed, "--delay", "0", *OPEN, "--max-pages", "3", "--out", out, "--json")[0])
    # The same with fewer flags is the same crawl: what was said before holds.
    same, beside = orb("crawl", seed, "--out", out, "--json")
    assert (json.loads(same)["revision"], json.loads(same)["pages"]) == (1, 3)
    assert "its --max-pages is used up: a greater one goes on, " in beside
    assert "--fresh starts over" in beside
    said, beside = orb("crawl", seed, "--max-pages", "none", "--out", out, "--json")
    second = json.loads(said)
    assert "with a changed spec: budget.max_pages: 3 -> none" in beside
    assert (first["revision"], second["revision"]) == (1, 2)
    assert (first["pages"], first["finished_reason"]) == (3, "max_pages")
    whole(out, served, SMALL)


def test_fresh_starts_over_and_keeps_what_is_not_its_own(web: Served, tmp_path: Path) -> None:
    served, out = web(SMALL), tmp_path / "a.crawl"
    seed = f"{served.origins[0]}/"
    orb("crawl", seed, "--delay", "0", *OPEN, "--out", out, "--json")
    orb("export", "pages", out, "-o", out / "pages.jsonl")
    first = stored_crawl.segments(out)
    said, beside = orb("crawl", seed, "--delay", "0", *OPEN, "--out", out, "--json", "--fresh")
    assert json.loads(said)["revision"] == 1
    assert "kept in" in beside
    assert (out / "pages.jsonl").exists()
    assert set(first).isdisjoint(stored_crawl.segments(out))
    whole(out, served, SMALL)


def test_failed_urls_are_fetched_again_on_request_and_no_others(web: Served, tmp_path: Path) -> None:
    tree, out = tmp_path / "tree", tmp_path / "a.crawl"
    tree.mkdir()
    (tree / "index.html").write_text(
        "<a href=late.html>late</a> <a href=never.html>never</a> <a href=page.html>page</a><a href=sub>a redirect</a>"
    )
    (tree / "page.html").write_text("a page")
    (tree / "sub").mkdir()
    (tree / "sub" / "index.html").write_text("below")
    served = web(FileTree(str(tree), robots="User-agent: *\nDisallow: /private/\n"))
    seed = f"{served.origins[0]}/"
    orb("crawl", seed, "--delay", "0", *OPEN, "--out", out, "--json")
    assert orb("crawl", "--out", out)[1].endswith(
        "--retry-failed tries 2 failed URLs again, and --fresh starts over.\n"
    )
    shown, _ = orb("show", out, "--url", f"{seed}late.html")
    assert f"`orb crawl --out {out} --retry-failed` tries it again." in shown
    (tree / "late.html").write_text("came later")
    before = len(served.log())
    said, beside = orb("crawl", "--out", out, "--retry-failed", "--json")
    summary = json.loads(said)
    assert sorted(exchange.path for exchange in served.log()[before:]) == ["/late.html", "/never.html"]
    assert "every failed URL is retried" in beside
    assert (summary["end"], summary["revision"], summary["pages"], summary["failed"]) == (
        *("finished", 1, 4),
        {"http_404": 1},
    )
    assert summary["identities"] == {"urls": 0, "links": 0}
    # Redirects and errors can be replayed, too, and robots.txt of each origin is in the archive.
    index = list(stored_crawl.index_lines(out))
    assert {line["url"].removeprefix(seed): line["status"] for line in index} == {
        **dict.fromkeys(("", "page.html", "late.html", "sub/"), "200"),
        **{"sub": "301", "never.html": "404"},
    }
    for line in index:
        record = stored_crawl.record_at(out, line["filename"], int(line["offset"]), int(line["length"]))
        assert (record.url, str(record.status)) == (line["url"], line["status"])
        assert record.digest == f"sha1:{line['digest']}"
    assert stored_crawl.payloads(out, f"{seed}robots.txt") == [b"User-agent: *\nDisallow: /private/\n"]
    stored_crawl.check_with_warcio(stored_crawl.segments(out))


def test_a_typo_in_the_spec_makes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "crawl.yaml"
    file.write_text("seeds: https://example.org/\npoliteness: {dleay_s: 1}\n")
    _, said = orb("crawl", "--spec", file, "--out", tmp_path / "out", code=2)
    assert "politeness.dleay_s: unknown field (did you mean delay_s?)" in said
    assert not (tmp_path / "out").exists()


def test_a_host_that_does_not_exist_ends_the_crawl_with_its_reason(tmp_path: Path) -> None:
    said, beside = orb("crawl", "no-such-host.invalid", "--out", tmp_path / "a", "--json", "--no-progress", code=1)
    summary = json.loads(said)
    assert (summary["end"], summary["exit_code"], summary["pages"]) == ("finished", 1, 0)
    assert "no page was fetched: " in summary["message"]
    assert "could not be resolved" in beside


def test_closed_networks_end_the_crawl_with_the_flag_that_opens_them(web: Served, tmp_path: Path) -> None:
    served = web(SMALL)
    seed, folder = f"{served.origins[0]}/", tmp_path / "a"
    _, beside = orb("crawl", seed, "--out", folder, "--no-progress", code=1)
    assert "--allow-net 127.0.0.0/8" in beside
    assert served.log() == []
    # Following the advice works: what failed without an answer is tried again under the changed spec.
    orb("crawl", seed, "--delay", "0", *OPEN, "--out", folder, "--no-progress")
    whole(folder, served, SMALL)


def test_processes_that_die_are_started_again(web: Served, tmp_path: Path) -> None:
    served, out = web(SLOW), tmp_path / "a.crawl"
    served.answer(60)
    with begun("crawl", f"{served.origins[0]}/", "--delay", "0.02", *OPEN, "--out", out, "--json") as run:
        served.wait_served(5)
        for sign in ("_worker", "_master", "nats-server"):
            for child in psutil.Process(run.pid).children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    words = child.cmdline()
                    if words and (words[-1] == sign or words[0].endswith(sign)):
                        child.kill()
        served.answer(None)
        said, beside = run.communicate(timeout=WAIT_S)
        assert run.returncode == 0, beside
    assert json.loads(said)["end"] == "finished"
    for name in ("worker-1", "master", "NATS"):
        assert f"{name} was killed by SIGKILL; it is started again" in beside
    whole(out, served, SLOW)


def test_passwords_are_on_no_command_line(web: Served, tmp_path: Path) -> None:
    served, out = web(SLOW), tmp_path / "a.crawl"
    with begun("crawl", f"{served.origins[0]}/", "--delay", "0.1", *OPEN, "--out", out, "--json") as run:
        served.wait_served(1)
        config = json.loads((out / "nats" / "nats.conf").read_text())
        lines = []
        for child in psutil.Process(run.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):  # it has just ended
                lines.append(" ".join(child.cmdline()))
        run.send_signal(signal.SIGINT)
        run.communicate(timeout=WAIT_S)
    assert len(lines) >= 3
    passwords = [user["password"] for account in config["accounts"].values() for user in account["users"]]
    assert len(passwords) >= 2
    assert not [line for line in lines if any(password in line for password in passwords)]


@pytest.mark.parametrize("columns", [80, 120])
def test_a_terminal_gets_a_display_that_fits_and_leaves_the_summary(web: Served, tmp_path: Path, columns: int) -> None:
    served, out = web(SLOW), tmp_path / "a.crawl"
    screen = _on_a_terminal(
        columns, "crawl", f"{served.origins[0]}/", "--delay", "0.02", *OPEN, "--out", out, interrupt=None
    )
    assert re.search(r"running  0:\d\d", screen)
    for expected in ("  pages     ", "  queue     ", "  hosts     ", "  answers   2xx ", "state      finished"):
        assert expected in screen
    drawn = [line for line in screen.splitlines() if "in flight" in line and "waiting" in line]
    assert drawn
    assert max(map(len, drawn)) < columns


def test_ctrl_c_typed_at_a_terminal_reaches_the_command_alone(web: Served, tmp_path: Path) -> None:
    served, out = web(SLOW), tmp_path / "a.crawl"
    screen = _on_a_terminal(
        *(100, "crawl", f"{served.origins[0]}/", "--delay", "0.2", *OPEN, "--out", out),
        interrupt=lambda: len(served.log()) >= 5,
        code=3,
    )
    assert "stopping" in screen
    assert "to go on: orb crawl" in screen
    assert "it is started again" not in screen


_ESCAPES: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def _on_a_terminal(columns: int, *arguments: str | Path, interrupt: Callable[[], bool] | None, code: int = 0) -> str:
    """What a command draws on a terminal of its own, escapes removed; Ctrl-C is typed when `interrupt` turns true."""
    parent, child = pty.openpty()
    ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 30, columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    process = subprocess.Popen(
        [*command_line(*arguments)],
        cwd=ROOT,
        stdin=child,
        stdout=child,
        stderr=child,
        env={**environment, "TERM": "xterm-256color"},
        start_new_session=True,
        # The terminal becomes the session's own, so that a typed Ctrl-C is a signal to its foreground processes.
        preexec_fn=lambda: ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(child)
    seen = bytearray()
    try:
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            if interrupt is not None and interrupt():
                os.write(parent, b"\x03")
                interrupt = None
            if not select.select([parent], [], [], 0.1)[0]:
                continue
            try:
                seen += os.read(parent, 65_536)
            except OSError:  # the last process has let go of the terminal
                break
        assert process.wait(WAIT_S) == code, seen.decode(errors="replace")[-3000:]
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        os.close(parent)
    return _ESCAPES.sub("", seen.decode(errors="replace")).replace("\r", "\n")
