"""The real documentation trees that Debian packages install: input that was not written for this project."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from tests.support.web.file_site import FileTree


@dataclass(frozen=True, slots=True)
class Corpus:
    """One tree: its Debian package, the places it may be at, where to start, and what its robots.txt says."""

    name: str
    package: str
    roots: tuple[str, ...]
    start: str
    robots: str

    def root(self) -> Path | None:
        """Where the tree is installed, or None."""
        return next((Path(root) for root in self.roots if Path(root).is_dir()), None)

    def site(self) -> FileTree:
        """The tree as a site; the tree must be installed."""
        root = self.root()
        if root is None:
            raise FileNotFoundError(f"{self.package} is not installed")
        return FileTree(root=str(root), robots=self.robots)


CORPORA: Final = (
    Corpus(
        "apache",
        "apache2-doc",
        ("/usr/share/doc/apache2-doc/manual",),
        "/index.html",
        "User-agent: *\nDisallow: /style/\n"
        + "".join(f"Disallow: /{each}/\n" for each in ("da", "es", "pt-br", "ru", "tr", "zh-cn")),
    ),
    Corpus(
        "python",
        "python3.11-doc",
        ("/usr/share/doc/python3.11/html", "/usr/share/doc/python3-doc/html"),
        "/index.html",
        "User-agent: *\nDisallow: /distutils/\n",
    ),
    Corpus(
        "postgresql",
        "postgresql-doc-15",
        ("/usr/share/doc/postgresql-doc-15/html",),
        "/index.html",
        "User-agent: *\nDisallow: /plperl\n",
    ),
)


def missing_packages() -> list[str]:
    """The Debian packages among CORPORA that are not installed."""
    return [corpus.package for corpus in CORPORA if corpus.root() is None]


def pages_of_every(step: int) -> list[Path]:
    """Return every `step`-th page of the installed documentation; in CI all of it must be installed."""
    missing = missing_packages()
    if missing:
        reason = f"not installed: {', '.join(missing)}"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    roots = [root for corpus in CORPORA if (root := corpus.root())]
    return sorted(path for root in roots for path in root.rglob("*.htm*") if path.is_file())[::step]
