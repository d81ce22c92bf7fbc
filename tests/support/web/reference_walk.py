"""An independent answer to "what should a crawl of this tree have stored?", from the files alone.

Written with the standard library's parsers only and sharing nothing with the crawler or with the server of the tree:
two programs that agree by a common mistake would prove nothing.
"""

import re
from collections import deque
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote, urldefrag, urljoin, urlsplit
from urllib.robotparser import RobotFileParser

_ORIGIN: Final = "http://tree.invalid"
_PATH_SAFE: Final = "/:@!$&'()*+,;=~-._%"
_REFRESH: Final = re.compile(r"^\s*[\d.]+\s*[;,\s]\s*(?:url\s*=\s*)?['\"]?\s*([^'\"]+)", re.IGNORECASE)
_CHARSET: Final = re.compile(rb"charset\s*=\s*[\"']?([A-Za-z0-9_-]+)", re.IGNORECASE)


@dataclass(slots=True)
class ReferenceWalk:
    """What a walk met, as paths with their query, each in the least depth at which it was met."""

    documents: dict[str, int] = field(default_factory=dict)
    html: set[str] = field(default_factory=set)
    missing: dict[str, int] = field(default_factory=dict)
    redirects: dict[str, int] = field(default_factory=dict)
    disallowed: set[str] = field(default_factory=set)


class _Links(HTMLParser):
    """The targets of a, area, frame, iframe, of link rel next or prev, of meta refresh, and the first base."""

    def __init__(self, *, obey_nofollow: bool) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[str] = []
        self.base = ""
        self._obey_nofollow = obey_nofollow

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        # The first of repeated attributes counts, as in a browser.
        named = {name: value or "" for name, value in reversed(attrs)}
        if tag in ("a", "area") and "href" in named:
            if not (self._obey_nofollow and "nofollow" in named.get("rel", "").lower().split()):
                self.found.append(named["href"])
        elif tag == "link" and "href" in named and {"next", "prev"} & set(named.get("rel", "").lower().split()):
            self.found.append(named["href"])
        elif tag in ("frame", "iframe") and "src" in named:
            self.found.append(named["src"])
        elif tag == "base" and "href" in named and not self.base:
            self.base = named["href"]
        elif tag == "meta" and named.get("http-equiv", "").lower() == "refresh":
            refresh = _REFRESH.match(named.get("content", ""))
            if refresh:
                self.found.append(refresh[1])


def links_of(data: bytes, path: str, *, obey_nofollow: bool = True) -> set[str]:
    """The paths (with query, without fragment) of the same host that the HTML `data`, met at `path`, links to."""
    declared = _CHARSET.search(data[:2048])
    try:
        text = data.decode(declared[1].decode() if declared else "utf-8", "replace")
    except LookupError:
        text = data.decode("latin-1")
    parser = _Links(obey_nofollow=obey_nofollow)
    parser.feed(text)
    parser.close()
    here = _ORIGIN + path
    base = urljoin(here, parser.base.strip()) if parser.base else here
    paths = set()
    for link in dict.fromkeys(parser.found):
        try:
            target = urlsplit(urldefrag(urljoin(base, link.strip()))[0])
        except ValueError:
            continue
        if f"{target.scheme}://{target.netloc}" == _ORIGIN:
            query = f"?{quote(target.query, safe=_PATH_SAFE + '/?')}" if target.query else ""
            paths.add(quote(target.path or "/", safe=_PATH_SAFE) + query)
    return paths


def reachable(
    root: Path, start: str = "/", *, robots: str = "", obey_nofollow: bool = True, max_depth: int | None = None
) -> ReferenceWalk:
    """Walks the files below `root` from the path `start` as an obedient crawler would walk their site.

    The site's rules: a directory answers its index.html, and redirects to itself with a slash when it is asked for
    without; symbolic links are followed; letter case counts. Only documents named *.html are read for links. Depth
    counts links: the target of a redirect is as deep as the redirect.
    """
    rules = RobotFileParser()
    rules.parse(robots.splitlines())
    walk = ReferenceWalk()
    waiting = deque([(start, 0)])
    least = {start: 0}
    done = set[str]()
    while waiting:
        path, depth = waiting.popleft()
        if path in done:
            continue
        done.add(path)
        if not rules.can_fetch("*", _ORIGIN + path):
            walk.disallowed.add(path)
            continue
        below: set[str] = set()
        step = 1
        bare = unquote(path.partition("?")[0])
        file = root / bare.lstrip("/")
        if file.is_dir() and not bare.endswith("/"):
            walk.redirects[path] = depth
            below, step = {quote(bare) + "/"}, 0
        else:
            file = file / "index.html" if file.is_dir() else file
            if not file.is_file() or (bare.endswith("/") and file.name != "index.html"):
                walk.missing[path] = depth
            else:
                walk.documents[path] = depth
                if file.suffix == ".html":
                    walk.html.add(path)
                    below = links_of(file.read_bytes(), path, obey_nofollow=obey_nofollow)
        if max_depth is not None and depth + step > max_depth:
            continue
        for target in sorted(below):
            if depth + step < least.get(target, 1 << 60):
                least[target] = depth + step
                # What is not deeper goes to the front: the queue stays in order of depth.
                (waiting.append if step else waiting.appendleft)((target, depth + step))
    return walk
