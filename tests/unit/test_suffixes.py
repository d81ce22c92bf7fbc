"""A crawl's hosts are divided by the public suffix list it was begun with, however new the installed one is."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from shared.adapters.local.suffixes import SNAPSHOT, keep_snapshot, use_snapshot
from shared.domain.web import url
from shared.domain.web.url import partition_of, registrable_domain


@pytest.fixture(autouse=True)
def _the_installed_list_again() -> Iterator[None]:
    yield
    url._fixed_suffixes.clear()
    for cached in (url._public_suffixes, registrable_domain, partition_of):
        cached.cache_clear()


def test_the_list_of_the_folder_wins_over_the_installed_one(tmp_path: Path) -> None:
    assert registrable_domain("a.b.example.com") == "example.com"
    before = partition_of("a.b.example.com", 4096)
    (tmp_path / SNAPSHOT).write_text("// an older list\ncom\nexample.com\n")
    use_snapshot(tmp_path)
    assert registrable_domain("a.b.example.com") == "b.example.com"
    assert partition_of("a.b.example.com", 4096) != before


def test_the_list_is_kept_once_and_says_what_the_installed_one_says(tmp_path: Path) -> None:
    keep_snapshot(tmp_path)
    kept = (tmp_path / SNAPSHOT).read_bytes()
    names = ["a.b.co.uk", "www.example.com", "x.github.io", "10.0.0.1", "b.\u4e2d\u56fd".encode("idna").decode()]
    installed = [registrable_domain(name) for name in names]
    use_snapshot(tmp_path)
    assert [registrable_domain(name) for name in names] == installed
    (tmp_path / SNAPSHOT).write_bytes(b"com\n")
    keep_snapshot(tmp_path)
    assert (tmp_path / SNAPSHOT).read_bytes() == b"com\n"
    assert kept != b"com\n"


def test_a_folder_without_a_list_uses_the_installed_one(tmp_path: Path) -> None:
    use_snapshot(tmp_path)
    assert registrable_domain("a.b.example.com") == "example.com"
