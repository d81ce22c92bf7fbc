"""The section `robots` of a crawl spec: the hosts whose robots rules a crawl does not obey."""

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from shared.domain.web.url import locate

_BELOW: Final = "*."


class Robots(msgspec.Struct, frozen=True, kw_only=True):
    """The section `robots` of a crawl spec: hosts whose robots.txt and robots directives the crawl ignores."""

    ignore_for: Annotated[
        Annotated[tuple[Annotated[str, Meta(min_length=1, max_length=260)], ...], Meta(max_length=1000)],
        Meta(
            description="Hosts of your own, whose robots.txt and robots directives are ignored: a host, or `*.` and a "
            "domain for all hosts below it. Either has the port if that is not the scheme's own: `*.example.org` "
            "matches no `a.example.org:8080`, `*.example.org:8080` does. Each such visit is marked in the archive.",
            examples=[["intranet.example.org", "*.test.example.org"]],
        ),
    ] = ()

    def ignored_for(self, host: str) -> bool:
        """Return True if the robots rules of `host` (`host[:port]` in canonical form) are ignored."""
        return any(host.endswith(each[1:]) if each.startswith(_BELOW) else host == each for each in self.ignore_for)


def host_problem(entry: str) -> tuple[str, str] | None:
    """Return the problem of an entry of `ignore_for`, and a hint what to write instead. Return None if it is valid."""
    name = entry.removeprefix(_BELOW)
    places = [] if set(name) & set("/?#@\\ *") else [locate(f"{scheme}://{name}/") for scheme in ("http", "https")]
    hosts = {place.host for place in places if place is not None}
    if not hosts:
        return f"{entry!r} is neither a host nor `*.` and a domain", "write it as example.org:8080 or *.example.org"
    other = next(iter(hosts - {name}), name)
    return (
        None if other == name else (f"{entry!r} is not in canonical form", f"write {entry.removesuffix(name)}{other}")
    )
