"""Random documents through the compiled tag scanner, built with AddressSanitizer and UndefinedBehaviorSanitizer.

    .venv/bin/python -m tests.support.sanitizer_run [--seed N] [--documents N]

It needs gcc and its sanitizers' libraries. Each document is copied to a block of exactly its length, so that a read of
one byte too many is seen, and its result is compared with that of `tags.py`. Real pages are spoiled as well, where
documentation is installed. The exit code is 0 if nothing was found; the sanitizers end the process where they object.
"""

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from cli.dev.native import CannotBuild, build
from tests.support.web.broken_markup import HOSTILE, joined, spoiled
from tests.support.web.corpora import CORPORA
from workers.parse.compiled import load
from workers.parse.tags import scan_tags

FLAGS: Final = (
    "-O1", "-g", "-fno-omit-frame-pointer", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-DEXACT_COPY",
)  # fmt: skip
_ROOT: Final = Path(__file__).resolve().parents[2]
_PAGES: Final = 60
_LIMITS: Final = (1, 2, 7, 1_000_000)


class NoSanitizer(Exception):
    """There is no gcc here, or none with its sanitizers; the message says what is missing."""


def struck(seed: int, documents: int) -> subprocess.CompletedProcess[str]:
    """Build the scanner, and run `documents` documents drawn from `seed` through it, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            runtime = subprocess.run(
                ["gcc", "-print-file-name=libasan.so"], check=True, capture_output=True, text=True
            ).stdout.strip()
            if not os.path.isabs(runtime):
                raise NoSanitizer("gcc has no libasan")
            scanner = build(Path(folder), ".so", *FLAGS)
        except (OSError, subprocess.CalledProcessError, CannotBuild) as problem:
            raise NoSanitizer(str(problem)) from problem
        return subprocess.run(
            [
                sys.executable,
                "-m",
                "tests.support.sanitizer_run",
                f"--seed={seed}",
                f"--documents={documents}",
                f"--scanner={scanner}",
            ],
            cwd=_ROOT,
            env={
                **os.environ,
                "LD_PRELOAD": runtime,
                "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0:exitcode=99",  # Python itself keeps what it has
                "PYTHONMALLOC": "malloc",
            },
            capture_output=True,
            text=True,
            check=False,
        )


def _documents(draw: random.Random, count: int) -> Iterator[bytes]:
    for make in HOSTILE.values():
        yield make(3_000)
        yield make(200_000)  # so long a one is scanned without the interpreter's lock
    roots = [root for corpus in CORPORA if (root := corpus.root())]
    paths = sorted(path for root in roots for path in root.rglob("*.html") if path.is_file())
    pages = [path.read_bytes() for path in draw.sample(paths, min(_PAGES, len(paths)))]
    for number in range(count):
        document = spoiled(draw, pages) if pages and number % 2 else joined(draw)
        yield document[: draw.randint(0, len(document))] if number % 3 else document


def _inside(scanner: Path, seed: int, count: int) -> int:
    """Compare both scanners on the documents; runs where the sanitizers' runtime is loaded."""
    compiled = load(scanner)
    draw = random.Random(seed)
    for number, document in enumerate(_documents(draw, count)):
        images, xml, limit = bool(number & 1), bool(number & 2), draw.choice(_LIMITS)
        found = compiled(document, images=images, xml=xml, limit=limit)
        if found != scan_tags(document, images=images, xml=xml, limit=limit):
            print(f"seed {seed}, document {number}: the scanners differ on {document[:3000]!r}", file=sys.stderr)
            return 1
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument("--documents", type=int, default=100_000)
    parser.add_argument("--scanner", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.scanner is not None:
        return _inside(asked.scanner, asked.seed, asked.documents)
    print(f"seed {asked.seed}, {asked.documents} documents", flush=True)
    done = struck(asked.seed, asked.documents)
    print(done.stdout + done.stderr, end="")
    print("nothing found" if done.returncode == 0 else f"exit code {done.returncode}")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
