"""One behaviour: the answers of a host of its own, and what a crawl of that host must do.

Answers, targets and URLs may hold placeholders, which the served host fills in: {origin}, {ip}, {port}, {decimal} (the
address as one number), {bystander} (the origin of a host that is no seed and that no crawl may reach).
"""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Final

import msgspec

HTML: Final = "Content-Type: text/html; charset=utf-8"
PLAIN: Final = "Content-Type: text/plain"
REASONS: Final = {status.value: status.phrase for status in HTTPStatus}


class Answer(msgspec.Struct, frozen=True):
    """One answer. `before` is sent as it is before the status line. A framed answer gets a Content-Length and leaves
    the connection open; any other is `body` after the head, and then the connection ends (`reset`: by RST). Of status 0
    nothing is sent.

    `payload` is what an archive must hold of it, where that is not `body`; with `partly` it is some part of that. With
    `drip_s` the lines of the body are sent so many seconds apart.
    """

    status: int = 200
    headers: tuple[str, ...] = (HTML,)
    body: bytes = b""
    framed: bool = True
    before: bytes = b""
    reset: bool = False
    payload: bytes | None = None
    version: str = "HTTP/1.1"
    drip_s: float = 0.0
    partly: bool = False


class Behaviour(msgspec.Struct, frozen=True):
    """A site and its judgement.

    `site` maps a request target to its answers: each request gets the next, the last one is repeated. A target that is
    missing there is a page with the target as title; a missing robots.txt is a 404.

    `asked` has every target that must be asked for, robots.txt apart, as often as it must be. Nothing else may be asked
    for. Each of them must end `done` with the status of its last answer, but for those in `ends`: a target or URL ->
    the state, and the reason where it is given too. "" there means that no export has it. `titles` maps a target to the
    title in the export of pages, and `truncated` to why its page is stored in part. `gap_s` are the least seconds from
    an answer of the host to the next request (0: the delay of the crawl), `apart_s` those between two requests for one
    target. `left_out` counts links of the site that are left out, by reason, and `host` is the name under which the
    site is crawled instead of its address. `idle_s`: the server closes a connection that was idle for so long.
    `not_indexed` maps a target whose page no export of pages may have to the directive that forbids it.
    """

    name: str
    source: str
    site: dict[str, tuple[Answer, ...]]
    asked: tuple[str, ...]
    ends: dict[str, str] = {}
    titles: dict[str, str] = {}
    truncated: dict[str, str] = {}
    apart_s: float = 0.0
    gap_s: float = 0.0
    seed: str = "/"
    left_out: dict[str, int] = {}
    host: str = ""
    idle_s: float = 0.0
    not_indexed: dict[str, str] = {}

    def origin(self, host: str) -> str:
        """Return the origin under which the site is crawled that is served at `host` (`ip:port`)."""
        _, _, port = host.partition(":")
        return f"http://{self.host}:{port}" if self.host else f"http://{host}"


def page(body: str | bytes, *headers: str, status: int = 200) -> Answer:
    """An HTML page, whose `headers` replace the Content-Type."""
    content = body.encode() if isinstance(body, str) else body
    return Answer(status, headers or (HTML,), content)


def redirect(location: str, status: int = 302) -> Answer:
    """A redirect with a short page."""
    return Answer(status, (f"Location: {location}", HTML), b"moved")


def links(*targets: str) -> Answer:
    """A page with a link to each of `targets`, which must need no escape in an attribute."""
    return page("".join(f'<p><a href="{target}">x</a>' for target in targets))


def site(
    seed: Answer, others: Mapping[str, Answer | tuple[Answer, ...]] | None = None
) -> dict[str, tuple[Answer, ...]]:
    """`seed` at `/` and `others` at their targets."""
    return {
        "/": (seed,),
        **{target: one if isinstance(one, tuple) else (one,) for target, one in (others or {}).items()},
    }


def ruled(name: str, source: str, robots: str | bytes | Answer, *, asked: str = "", closed: str = "") -> Behaviour:
    """A behaviour of robots.txt: of the links on the seed, those of `asked` are allowed, and those of `closed` not."""
    text = robots.encode() if isinstance(robots, str) else robots
    answer = text if isinstance(text, Answer) else Answer(200, (PLAIN,), text)
    return Behaviour(
        name,
        source,
        site(links(*asked.split(), *closed.split()), {"/robots.txt": answer}),
        ("/", *asked.split()),
        ends=dict.fromkeys(closed.split(), "excluded robots"),
    )
