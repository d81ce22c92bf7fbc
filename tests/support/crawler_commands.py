"""Who takes part in the comparison, as command lines."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.support.peer_environment import PEERS

ROOT: Final = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Contestant:
    """A crawler of the comparison. `command(peers' python, start URL, empty folder)` is what is run and measured."""

    key: str
    title: str
    keeps: str
    command: Callable[[Path, str, Path], list[str]]


def _peer(program: str, *options: str) -> Callable[[Path, str, Path], list[str]]:
    return lambda python, start, _: [str(python), str(PEERS / program), start, *options]


def _orb(_: Path, start: str, out: Path) -> list[str]:
    return [
        *(sys.executable, "-m", "orb", "crawl", start, "--delay", "0", "--allow-net", "127.0.0.0/8"),
        *("--out", str(out / "crawl"), "--json", "--no-progress"),
    ]


BASELINE: Final = "bare"
CONTESTANTS: Final = (
    Contestant("orb", "orb crawl", "WARC, index, frontier in SQL, JetStream", _orb),
    Contestant(BASELINE, "bare loop (aiohttp, lexbor, ada, uvloop)", "nothing", _peer("bare_loop.py")),
    Contestant("scrapy", "Scrapy, lean, its LinkExtractor", "nothing", _peer("scrapy_lean.py", "extractor")),
    Contestant("scrapy-selector", "Scrapy, lean, its selectors", "nothing", _peer("scrapy_lean.py", "selector")),
    Contestant("scrapy-lexbor", "Scrapy, lean, links by lexbor and ada", "nothing", _peer("scrapy_lean.py", "lexbor")),
    Contestant("scrapy-broad", "Scrapy, broad-crawl settings", "nothing", _peer("scrapy_broad.py")),
    Contestant("crawlee", "Crawlee (parsel)", "nothing", _peer("crawlee_peer.py")),
)
