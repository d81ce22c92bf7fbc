"""From a command line and a spec file to one crawl spec: what wins, and how all that is wrong is told at once."""

import argparse
import os
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cli.local import crawl
from cli.local.crawl import _announce, authorities_of, configure, put_authorities
from cli.local.crawl_args import judged
from cli.local.crawl_folder import CrawlFolder
from cli.local.spec_flags import FLAGS, changed_fields, effects, seed_urls, stored
from cli.local.up import MAX_MEMBERS
from cli.main import main
from cli.terminal.exits import Exit, Usage
from shared.domain.crawl.spec import CrawlSpec, ScopeMode
from shared.domain.crawl.spec_parse import parse_spec
from workers.fetch.curl import default_ca_bundle

URL = "https://example.org/"


def parsed(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    configure(parser)
    return parser.parse_args(list(arguments))


def spec_of(*arguments: str) -> CrawlSpec:
    return judged(parsed(*arguments)).spec


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_every_flag_sets_the_field_it_names() -> None:
    spec = spec_of(
        *(URL, "--max-pages", "10", "--max-depth", "0", "--max-time", "1h30m", "--max-bytes", "5000000"),
        *("--delay", "0.5", "--scope", "domain", "--include", "/a", "--include", "/b", "--exclude", "/c"),
        *("--contact", "https://me.example/", "--user-agent", "x", "--allow-net", "10.0.0.0/8", "--no-robots"),
    )
    assert (spec.budget.max_pages, spec.budget.max_seconds, spec.budget.max_bytes) == (10, 5400, 5_000_000)
    assert (spec.scope.max_depth, spec.scope.mode) == (0, ScopeMode.DOMAIN)
    assert (spec.scope.include, spec.scope.exclude) == (("/a", "/b"), ("/c",))
    assert (spec.politeness.delay_s, spec.politeness.obey_robots) == (0.5, False)
    assert (spec.fetch.contact, spec.fetch.user_agent) == ("https://me.example/", "x")
    assert spec.egress.allow == ("10.0.0.0/8",)


def test_a_local_crawl_waits_ten_minutes_for_a_site_that_stops_answering(tmp_path: Path) -> None:
    assert spec_of(URL).retry.outage_s == 600
    assert spec_of(URL, "--outage", "1h30m").retry.outage_s == 5400
    file = tmp_path / "crawl.yaml"
    file.write_text(f"seeds: {URL}\nretry: {{outage_s: 50, attempts: 5}}\n")
    assert (spec_of("--spec", str(file)).retry.outage_s, spec_of("--spec", str(file)).retry.attempts) == (50, 5)
    file.write_text(f"seeds: {URL}\nretry: {{attempts: 5}}\n")
    assert (spec_of("--spec", str(file)).retry.outage_s, spec_of("--spec", str(file)).retry.attempts) == (600, 5)


def test_every_flag_names_a_field_that_exists() -> None:
    document = stored(parse_spec({"seeds": [URL]}))
    for flag in FLAGS:
        section, _, name = flag.path.partition(".")
        assert name in document[section], flag


def test_flags_replace_what_the_spec_file_says_and_leave_the_rest(tmp_path: Path) -> None:
    file = tmp_path / "crawl.yaml"
    file.write_text(
        "seeds: https://a.example/\nscope: {mode: domain, exclude: [/x]}\nbudget:\npoliteness: {delay_s: 3}\n"
    )
    spec = spec_of("--spec", str(file), "--max-pages", "7", "--exclude", "/y")
    assert [seed.url for seed in spec.seeds] == ["https://a.example/"]
    assert (spec.scope.mode, spec.scope.exclude) == (ScopeMode.DOMAIN, ("/y",))
    assert (spec.budget.max_pages, spec.politeness.delay_s) == (7, 3.0)
    assert [seed.url for seed in spec_of("--spec", str(file), URL).seeds] == [URL]


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("15m", 900), ("2h30m", 9000), ("1d", 86_400), ("0.2s", 1)]
)
def test_times_are_written_as_people_write_them(text: str, seconds: int) -> None:
    assert spec_of(URL, "--max-time", text).budget.max_seconds == seconds


@pytest.mark.parametrize("flag", ["--recrawl", "--max-time"])
def test_time_of_no_length_is_refused(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["crawl", URL, flag, "0s"]) == Exit.USAGE
    assert f"got 0 [given as {flag}" in capsys.readouterr().err


def test_all_problems_are_told_at_once_with_field_and_flag(capsys: pytest.CaptureFixture[str]) -> None:
    bad = ("--max-pages", "many", "--scope", "hots", "--delay", "-1", "--allow-net", "10.0.0.1/8", "--max-time", "soon")
    assert main(["crawl", URL, *bad]) == Exit.USAGE
    said = capsys.readouterr().err
    assert said.startswith("orb: the command line has 5 problems:\n")
    for expected in (
        "budget.max_pages: expected a whole number or nothing, got 'many' [given as --max-pages]",
        "scope.mode: expected one of host, domain, prefix, any, got 'hots' (did you mean host?) [given as --scope]",
        "politeness.delay_s: ",
        "egress.allow[0]: 10.0.0.1/8 has host bits set (did you mean 10.0.0.0/8?) [given as --allow-net]",
        "got 'soon' [given as --max-time, and written as 90s, 15m or 2h30m]",
    ):
        assert expected in said


def test_typo_in_a_spec_file_is_named_with_what_was_meant(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "crawl.yaml"
    file.write_text("seeds: [example.org]\npoliteness:\n  dleay_s: 2\n")
    assert main(["crawl", "--spec", str(file)]) == Exit.USAGE
    said = capsys.readouterr().err
    assert "politeness.dleay_s: unknown field (did you mean delay_s?)" in said
    assert "seeds[0].url: 'example.org' has no scheme (did you mean https://example.org/?)" in said
    assert sorted(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("seeds: [a\nscope: }", "crawl.yaml:2:6: this is not YAML"),
        ("seeds: [https://a.example/]\nname: a\nname: b\n", "crawl.yaml:3:1: this is not YAML: the key 'name'"),
        ("a: \x01", "this is not YAML"),
        ("", "is empty"),
        ("- a\n", "must be a mapping"),
        ("just words", "must be a mapping"),
    ],
)
def test_what_is_no_spec_is_refused_with_its_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    (tmp_path / "crawl.yaml").write_text(text)
    assert main(["crawl", "--spec", "crawl.yaml"]) == Exit.USAGE
    assert said in capsys.readouterr().err


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(Usage, match=r"cannot read the spec none\.yaml: No such file"):
        judged(parsed("--spec", "none.yaml"))
    (tmp_path / "latin.yaml").write_bytes(b"name: \xff")
    with pytest.raises(Usage, match="not UTF-8"):
        judged(parsed("--spec", "latin.yaml"))


def test_https_is_assumed_where_no_scheme_is_given_and_said() -> None:
    assert seed_urls(["Example.org:8080/a", "http://b.example"]) == (
        ["https://example.org:8080/a", "http://b.example"],
        ["Example.org:8080/a has no scheme: taken as https://example.org:8080/a"],
    )


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("127.0.0.1:8000", "http://127.0.0.1:8000/"),
        ("10.0.0.7/a", "http://10.0.0.7/a"),
        ("[::1]:8000", "http://[::1]:8000/"),
        ("localhost:3000/x", "http://localhost:3000/x"),
        ("app.localhost", "http://app.localhost/"),
        ("127.0.0.1:443", "https://127.0.0.1/"),
        ("localhost.example:80", "https://localhost.example:80/"),
        ("1.example", "https://1.example/"),
    ],
)
def test_http_is_assumed_of_this_machine_and_of_addresses(text: str, url: str) -> None:
    assert seed_urls([text]) == ([url], [f"{text} has no scheme: taken as {url}"])


@pytest.mark.parametrize("text", ["me@example.org", "no host", "/path", ""])
def test_what_cannot_be_a_seed_is_refused(text: str) -> None:
    with pytest.raises(Usage, match="is not an http or https URL"):
        seed_urls([text])


@pytest.mark.parametrize("text", ["--json", "-q", " --max-pages"])
def test_an_option_in_the_place_of_a_url_is_refused(text: str) -> None:
    with pytest.raises(Usage, match=r"is in the place of a URL; if it is an option, write it before `--`"):
        seed_urls([text])


def test_a_spec_file_given_as_url_is_recognised(tmp_path: Path) -> None:
    (tmp_path / "crawl.yaml").touch()
    with pytest.raises(Usage, match=r"did you mean `--spec crawl\.yaml`"):
        seed_urls(["crawl.yaml"])


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("https://docs.example.org/x", "docs.example.org.crawl"),
        ("http://127.0.0.1:8000/", "127.0.0.1-8000.crawl"),
        ("http://[::1]:8000/", "1-8000.crawl"),
    ],
)
def test_the_folder_is_named_after_the_first_seeds_host(url: str, name: str) -> None:
    assert str(judged(parsed(url, "https://other.example/")).folder.path) == name


@pytest.mark.parametrize("workers", ["0", "-1", "two", "1000", "1.5"])
def test_workers_are_a_whole_number_within_reason(workers: str) -> None:
    with pytest.raises(Usage, match="--workers"):
        judged(parsed(URL, "--workers", workers))


def test_something_to_crawl_must_be_named(tmp_path: Path) -> None:
    with pytest.raises(Usage, match="no URL given"):
        judged(parsed())
    with pytest.raises(Usage, match="contains no crawl to resume"):
        judged(parsed("--out", str(tmp_path / "new")))


def test_the_stored_spec_goes_on_with_flags_laid_over(tmp_path: Path) -> None:
    first = judged(parsed(URL, "--max-pages", "5", "--delay", "2", "--out", "a"))
    first.folder.make()
    first.folder.put_spec(first.spec)
    again = judged(parsed("--out", "a", "--max-pages", "9"))
    assert (again.spec.budget.max_pages, again.spec.politeness.delay_s) == (9, 2.0)
    assert changed_fields(first.spec, again.spec) == ["budget.max_pages: 5 -> 9"]
    assert changed_fields(first.spec, judged(parsed("--out", "a")).spec) == []


def test_a_repeated_url_keeps_what_its_flags_said_and_fresh_forgets_it(tmp_path: Path) -> None:
    first = judged(parsed(URL, "--max-pages", "5", "--exclude", "/private"))
    first.folder.make()
    first.folder.put_spec(first.spec)
    assert judged(parsed(URL)).spec == first.spec, "in the folder that is named after its host, too"
    assert judged(parsed(URL, "--out", str(first.folder.path))).spec == first.spec
    assert changed_fields(first.spec, judged(parsed(URL, "--max-pages", "none")).spec) == [
        "budget.max_pages: 5 -> none"
    ]
    more = judged(parsed("https://a.example/", "--out", str(first.folder.path)))
    assert changed_fields(first.spec, more.spec) == [f"seeds: {URL} -> https://a.example/"]
    fresh = judged(parsed(URL, "--fresh"))
    assert (fresh.spec.budget.max_pages, fresh.spec.scope.exclude) == (None, ())
    (tmp_path / "c.yaml").write_text(f"seeds: {URL}\n")
    assert judged(parsed("--spec", "c.yaml", "--out", str(first.folder.path))).spec == fresh.spec


def test_another_crawls_folder_is_not_taken(tmp_path: Path) -> None:
    first = judged(parsed(URL, "--out", "a"))
    first.folder.make()
    first.folder.put_spec(first.spec)
    (tmp_path / "b.yaml").write_text(f"name: other\nseeds: {URL}\n")
    with pytest.raises(Usage, match="holds the crawl 'crawl' and not 'other'"):
        judged(parsed("--spec", "b.yaml", "--out", "a"))
    assert judged(parsed("--spec", "b.yaml", "--out", "a", "--fresh")).spec.name == "other"


def test_changed_seeds_are_told_by_their_urls() -> None:
    old, new = parse_spec({"seeds": [URL]}), parse_spec({"seeds": ["https://a.example/", "https://b.example/"]})
    assert changed_fields(old, new) == [f"seeds: {URL} -> https://a.example/, https://b.example/"]


def test_a_cluster_on_one_machine_has_a_bounded_number_of_members(capsys: pytest.CaptureFixture[str]) -> None:
    for flag in ("--masters", "--workers"):
        assert main(["up", flag, str(MAX_MEMBERS + 1)]) == Exit.USAGE
        assert f"expected a whole number up to {MAX_MEMBERS}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(("--fresh",), "--fresh removes it; choose one"), (("--out", "none.crawl"), "none.crawl holds none yet")],
)
def test_retrying_failures_without_a_crawl_is_refused(arguments: tuple[str, ...], said: str) -> None:
    with pytest.raises(Usage, match=f"--retry-failed needs a crawl to resume, but .*{said}"):
        judged(parsed(URL, "--retry-failed", *arguments))


def test_seed_label_with_two_values_is_a_usage_error() -> None:
    given = ("http://a.test/", "--seed-label", "team=red", "--seed-label")
    with pytest.raises(Usage, match="--seed-label team=blue: the label team is given two values"):
        spec_of(*given, "team=blue")
    spec = spec_of(*given, "team=red")
    assert [seed["labels"] for seed in stored(spec)["seeds"]] == [{"team": "red"}]


def test_changed_flags_say_what_they_will_do() -> None:
    def said(**sections: object) -> list[str]:
        return effects(changed_fields(parse_spec({"seeds": [URL]}), parse_spec({"seeds": [URL], **sections})))

    assert said() == []
    assert "to the links of stored pages" in said(scope={"max_depth": 3})[0]
    assert "up to the changed limits" in said(budget={"max_pages": 3})[0]
    assert "new seeds are added" in said(seeds=[URL, "https://b.example/"])[0]
    assert len(said(fetch={"contact": "a@b.example"}, politeness={"delay_s": 2})) == 1


@pytest.mark.parametrize(
    ("flags", "rescoped"), [(("--scope", "prefix"), True), (("--extra-hops", "1"), True), ((), False)]
)
def test_seed_that_changes_the_scope_says_what_happens_to_queued_urls(
    flags: tuple[str, ...], rescoped: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    before = spec_of("http://a.test/a/", *flags)
    folder = CrawlFolder(Path("p.crawl"))
    folder.make()
    folder.put_spec(before)
    wanted = judged(parsed("http://b.test/b/", "--out", "p.crawl"))
    _announce(wanted, before)
    said = capsys.readouterr().err
    assert "new seeds are added" in said
    assert ("the changed scope applies to queued URLs" in said) is rescoped
    assert ("scope prefix: URLs below b.test/b/" in said) is ("prefix" in flags)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("htp://example.org/", "http://example.org/"),
        ("htps://example.org/", "https://example.org/"),
        ("https:/example.org/a", "https://example.org/a"),
        ("http//example.org/", "http://example.org/"),
    ],
)
def test_slip_in_a_scheme_names_the_url_that_was_meant(typed: str, meant: str) -> None:
    with pytest.raises(Usage, match=rf"did you mean `?{re.escape(meant)}[`?]"):
        spec_of(typed)


@pytest.mark.parametrize("typed", ["ftp://example.org/", "mailto://a"])
def test_another_scheme_is_no_slip(typed: str) -> None:
    with pytest.raises(Usage) as refused:
        spec_of(typed)
    assert "did you mean" not in str(refused.value)


def test_file_of_authorities_is_checked_before_anything_else(tmp_path: Path) -> None:
    with pytest.raises(Usage, match=r"--ca: cannot read .*: No such file"):
        authorities_of(str(tmp_path / "none.pem"))
    for content in ("", "no certificate", "-----BEGIN CERTIFICATE-----\nours\n-----END CERTIFICATE-----\n"):
        (tmp_path / "empty.pem").write_text(content)
        with pytest.raises(Usage, match="has no PEM certificate"):
            authorities_of(str(tmp_path / "empty.pem"))
    assert authorities_of("none") == b""
    assert authorities_of(None) is None


def test_authorities_from_a_pipe_are_read_once_and_stored(tmp_path: Path) -> None:
    own = "# Főtanúsítvány\n".encode() + Path(default_ca_bundle()).read_bytes()
    fifo = tmp_path / "pipe"
    os.mkfifo(fifo)
    with ThreadPoolExecutor(1) as writer:
        writing = writer.submit(fifo.write_bytes, own)
        read = authorities_of(str(fifo))
        writing.result()
    assert read == own
    folder = CrawlFolder(tmp_path)
    put_authorities(folder, read)
    assert folder.authorities.read_bytes().endswith(own.strip() + b"\n")


def test_fresh_crawl_keeps_authorities_that_it_deletes_with_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = CrawlFolder(tmp_path / "d.crawl")
    folder.make()
    folder.put_spec(spec_of(URL))
    own = Path(default_ca_bundle()).read_bytes()
    folder.authorities.write_bytes(own)
    monkeypatch.setattr(crawl, "_crawled", lambda *_: 0)
    assert crawl.run(parsed("--out", str(folder.path), "--fresh", "--ca", str(folder.authorities))) == 0
    assert folder.authorities.read_bytes().endswith(own.strip() + b"\n")
