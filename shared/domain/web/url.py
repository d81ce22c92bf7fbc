"""Canonical URLs and what is derived from them: fingerprint, host, registrable domain, partition.

A *canonical URL* is the WHATWG serialisation of an absolute http or https URL with exactly two further rules:

* The fragment is dropped (it never reaches a server).
* Percent-encoding is in normal form (RFC 3986 §6.2.2). Escapes of unreserved characters (`A-Z a-z 0-9 - . _ ~`) are
  decoded, the hex digits of all others are upper-case. Escapes of reserved characters are never decoded and raw ones
  never escaped. A URL with a stray `%` (not followed by two hex digits) keeps its escapes.

The WHATWG parser already lower-cases scheme and host, applies IDNA (UTS #46), and writes IPv4 and IPv6 literals in one
form. It drops the scheme's default port, resolves dot segments (`%2e` too), turns an empty path into `/`, and removes
tabs and line ends. It percent-encodes where it must (as UTF-8, in the query too).

Differences that a server may see are never merged. An empty query (`/?`), the order of parameters, doubled and trailing
slashes, the case of paths, `www.`, http and https, and a host with a trailing dot are all kept.

These have no canonical form (None):

* other schemes, and URLs that WHATWG rejects;
* URLs with user or password;
* hosts that no resolver accepts: a label that is empty, over 63 characters, or with characters other than letters,
  digits, `-` and `_`; names over 253 characters;
* port 0;
* anything longer than `MAX_URL_CHARS` before parsing, such as `data:` URLs of megabytes.
"""

import re
from functools import cache, lru_cache
from ipaddress import ip_address
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec
from ada_url import join_url, normalize_url
from blake3 import blake3
from publicsuffixlist import PSLFILE, PublicSuffixList

from shared.domain.ids import Fingerprint, Partition

MAX_URL_CHARS: Final = 16_384
"""Input with more characters is refused without parsing. A crawl's scope checks its own, lower `max_url_length`."""

LOCATED_CACHE: Final = 16_384
"""The maximum number of entries in one half of a process's cache of resolved links (`_LocatedCache`).

The cache has a half for recent entries and one for older ones. An entry has about 350 bytes, so a full cache has about
11 MiB."""

HOST_CACHE: Final = 32_768
"""The maximum number of entries in each per-process cache that is keyed by host. An entry has about 250 bytes."""

_LABEL: Final = r"[a-z0-9_-]{1,63}"
_CANONICAL: Final = re.compile(
    rf"https?://((?:(?:{_LABEL}\.)*{_LABEL}\.?|\[[0-9a-f:]+\])(?::[1-9][0-9]{{0,4}})?)/[^#]*"
).fullmatch
_PLAIN: Final = re.compile(
    r"https?://((?:(?!xn--)[a-z0-9-]{1,63}\.)+[a-z]{2,63})(?:/(?!\.)[A-Za-z0-9_.~!$&'()*+,;=:@-]*)+"
    r"(?:\?[A-Za-z0-9_.~!$&()*+,;=:@/?-]*)?"
).fullmatch
"""Matches URLs that are canonical as they are, as most links are. Each has an ordinary name without a port, no escape,
no fragment, and no segment that begins with a dot."""

_ESCAPE: Final = re.compile(r"%([0-9A-Fa-f]{2})")
_STRAY_PERCENT: Final = re.compile(r"%(?![0-9A-Fa-f]{2})").search
_UNRESERVED: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_IPV4: Final = re.compile(r"[0-9]+\.[0-9]+\.[0-9]+\.[0-9]+").fullmatch
_MAX_NAME: Final = 253
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.\-\t\r\n]*):").match
_SPACE: Final = "".join(map(chr, range(33)))
_SCHEME_CHARS: Final = 256
_FREQUENT: Final = ("mailto:", "javascript:", "tel:", "data:")


class Location(msgspec.Struct, frozen=True, gc=False):
    """A canonical URL with its host (the politeness key) and fingerprint."""

    url: str
    host: str
    fingerprint: Fingerprint


def canonicalize(url: str, base: str | None = None) -> str | None:
    """Return the canonical form of `url`, resolved against `base` if given, or None if there is none.

    The function is idempotent: `canonicalize(c) == c` for every result c. Return None if `url` is relative and `base`
    is no absolute URL.
    """
    parsed = _parse(url, base)
    return None if parsed is None else parsed[0]


def _parse(url: str, base: str | None) -> tuple[str, str] | None:
    """Return the canonical form of `url`, and the authority (host and port) in it. Return None if it has none."""
    # `_CANONICAL` matches no URL with user or password: a page could otherwise make the crawler present credentials.
    if len(url) > MAX_URL_CHARS:
        return None
    if (plain := _PLAIN(url)) is not None and len(plain[1]) <= _MAX_NAME:
        return url, plain[1]
    try:
        href = normalize_url(url) if base is None else join_url(base, url)
    except ValueError:
        return None
    if "#" in href:
        href = href[: href.index("#")]
    match = _CANONICAL(href)
    if match is None:
        return None
    authority = match[1]
    if len(authority) > _MAX_NAME and len(authority.partition(":")[0].removesuffix(".")) > _MAX_NAME:
        return None
    return (_normal_escapes(href) if "%" in href else href), authority


def _normal_escapes(href: str) -> str:
    if _STRAY_PERCENT(href):  # Decoding next to a stray % could make a new escape.
        return href
    return with_normal_escapes(href)


def with_normal_escapes(text: str) -> str:
    """Decode the percent escapes of unreserved characters in `text`, and write all others with upper-case digits.

    This is also done next to a stray `%`, which is no escape. The result is for comparisons, and not a URL to request.
    """
    return _ESCAPE.sub(_normal_escape, text) if "%" in text else text


@cache  # There are at most 22 * 22 spellings.
def _normal_escape_of(digits: str) -> str:
    char = chr(int(digits, 16))
    return char if char in _UNRESERVED else "%" + digits.upper()


def _normal_escape(match: re.Match[str]) -> str:
    return _normal_escape_of(match[1])


def with_scheme(text: str) -> str:
    """Return `text`, a URL without a scheme, with the scheme that it most likely has.

    With the port 443 the scheme is https. With any other port or none, it is http for `localhost` and IP addresses, and
    https for other hosts. Text that begins with `-` is a command's option and is returned unchanged. The
    result is a valid URL only if the rest of `text` is.
    """
    if text.startswith("-"):
        return text
    assumed = f"http://{text}"
    try:
        parts = urlsplit(assumed)
        host, port = parts.hostname or "", parts.port
        if host != "localhost" and not host.endswith(".localhost"):
            ip_address(host)
    except ValueError:
        return f"https://{text}"
    return f"https://{text}" if port == 443 else assumed


def fingerprint(canonical: str) -> Fingerprint:
    """Return the fingerprint of a canonical URL: its blake3 hash, cut to 16 bytes."""
    return Fingerprint(blake3(canonical.encode()).digest(length=16))


def names_other_scheme(reference: str) -> bool:
    """Return True if `reference` (an attribute's value, as written) names a scheme other than http and https.

    Only its first characters are examined. As in the WHATWG parser, leading space, tabs and line ends are ignored.
    """
    if reference.startswith(_FREQUENT):
        return True
    match = _SCHEME(reference.lstrip(_SPACE)[:_SCHEME_CHARS])
    return match is not None and re.sub(r"[\t\r\n]", "", match[1]).lower() not in ("http", "https")


def scheme_of(canonical: str) -> str:
    """Return the scheme of a canonical URL: `http` or `https`."""
    return canonical[: canonical.index(":")]


def host_of(canonical: str) -> str:
    """Return the host of a canonical URL, the unit of politeness: `name` or `name:port`, without the scheme's default
    port.

    http and https on their default ports have the same host, because they are one machine for politeness. The trailing
    dot of a fully qualified name is dropped for the same reason. IPv6 literals keep their brackets.
    """
    start = canonical.index("/") + 2
    return _host_key(canonical[start : canonical.index("/", start)])


def _host_key(authority: str) -> str:
    if authority.endswith("."):
        return authority[:-1]
    return authority.replace(".:", ":", 1) if ".:" in authority else authority


def origin_of(canonical: str) -> str:
    """Return the origin of a canonical URL: `scheme://host[:port]`. Each has one robots.txt (RFC 9309 §2.3)."""
    return canonical[: canonical.index("/", canonical.index("/") + 2)]


def locate(url: str, base: str | None = None) -> Location | None:
    """Return the canonical form of `url`, resolved against `base` if given, with its host and fingerprint.

    Return None if it has no canonical form.
    """
    parsed = _parse(url, base)
    if parsed is None:
        return None
    canonical, authority = parsed
    return Location(canonical, _host_key(authority), fingerprint(canonical))


def host_named(text: str) -> str | None:
    """Return the host that `text` names, as `name` or `name:port`, in canonical form. Return None if it is no host."""
    location = locate(f"http://{text}/")
    return location.host if location is not None and location.url == f"http://{location.host}/" else None


DEFAULT_PORT: Final = "has the default port of http or https, which URLs leave out"
"""The reason to refuse a host for which `without_default_port` returns a name."""


def without_default_port(text: str) -> str | None:
    """Return the host that `text` names, without its port, if that is the default port of http or https.

    Return None if `text` is no host, or has no port or another one.
    """
    places = (locate(f"{scheme}://{text}/") for scheme in ("http", "https"))
    hosts = {place.host for place in places if place is not None}
    return min(hosts, key=len) if len(hosts) > 1 else None


_CACHED_CHARS: Final = 512


class _LocatedCache:
    """A cache of resolved links, by the directory of their base URL and then by the link as written (`../a.html`).

    The cache has two parts of about `LOCATED_CACHE` entries each: a present part and an earlier part. New entries go to
    the present part. If a directory is used again, its entries move to the present part. When the present part is full,
    it replaces the earlier part, and the entries of the earlier part are dropped.

    Threads may use the cache concurrently; at worst a few entries are lost.
    """

    __slots__ = ("_before", "_entries", "_now")

    def __init__(self) -> None:
        self.clear()

    def __len__(self) -> int:
        return sum(len(links) + 1 for part in (self._now, self._before) for links in part.values())

    def clear(self) -> None:
        self._now: dict[str, dict[str, Location]] = {}
        self._before: dict[str, dict[str, Location]] = {}
        self._entries = 0

    def of(self, directory: str) -> dict[str, Location]:
        """Return the cached links of the pages in a directory: a link as written (`../a.html`) -> the resolved URL.

        The caller may add links to this dictionary, and must then call `added`.
        """
        links = self._now.get(directory)
        if links is None or len(links) >= LOCATED_CACHE:
            links = self._before.pop(directory, {})
            if len(links) >= LOCATED_CACHE:
                links = {}
            self._now[directory] = links
            self.added(len(links) + 1)
        return links

    def added(self, n: int = 1) -> None:
        """Count `n` new entries. If the present part is now full, it replaces the earlier part."""
        self._entries += n
        if self._entries > LOCATED_CACHE:
            self._before, self._now, self._entries = self._now, {}, 0


_located: Final = _LocatedCache()


class Resolver:
    """Resolves the links of one page against `base`: the page's canonical URL, or its `<base href>` made canonical.

    `resolve(link)` returns the same as `locate(link, base)`, but is faster. A relative link such as `a.html` has the
    same target on every page of a directory. So the process caches the targets of links by directory.
    """

    __slots__ = ("_base", "_cached", "_directory", "_links", "_own")

    def __init__(self, base: str) -> None:
        self._base = base
        path = base.partition("?")[0]
        self._directory = path[: path.rindex("/") + 1]
        self._cached = len(self._directory) <= _CACHED_CHARS
        self._links = _located.of(self._directory) if self._cached else {}
        self._own: Location | None = None

    def resolve(self, reference: str) -> Location | None:
        """Return the canonical target of `reference` (an attribute's value, as written), or None if there is none."""
        location = self._links.get(reference)
        if location is not None:
            return location
        if not self._cached or len(reference) > _CACHED_CHARS:
            return locate(reference, self._base)
        if "#" in reference:
            head = reference[: reference.index("#")]
            if not head:
                self._own = self._own or locate("", self._base)
                return self._own
            # Space at the end of a reference is trimmed, but space before a fragment belongs to the path.
            if head[-1] > " ":
                reference = head
        if not reference or reference[0] == "?" or reference[0] <= " ":
            return locate(reference, self._base)
        colon = reference.find(":")
        if colon >= 0 and not reference.startswith("//", colon + 1):
            return locate(reference, self._base)
        location = self._links.get(reference) or locate(reference, self._directory)
        if location is not None and reference not in self._links:
            self._links[reference] = location
            _located.added()
        return location


_fixed_suffixes: list[str] = []


@cache
def _public_suffixes() -> PublicSuffixList:
    return PublicSuffixList(_suffix_lines())


def _suffix_lines() -> list[str]:
    return (_fixed_suffixes[-1] if _fixed_suffixes else Path(PSLFILE).read_text(encoding="utf-8")).splitlines()


def fix_public_suffixes(text: str) -> None:
    """Use this public suffix list (the published file's text) to find registrable domains in this process from now on.

    Partitions depend on the list. So every process of a cluster uses the list that the cluster was created with, even
    if a newer one is installed.
    """
    _fixed_suffixes.append(text)
    for cached in (_public_suffixes, _above_suffixes, registrable_domain, partition_of):
        cached.cache_clear()


def public_suffix_snapshot() -> str:
    """Return the version of the public suffix list (the package publicsuffixlist) that is installed."""
    from importlib.metadata import version  # its libraries are a tenth of what `orb show` imports

    return version("publicsuffixlist")


@lru_cache(maxsize=HOST_CACHE)
def registrable_domain(host: str) -> str:
    """Return the registrable domain of `host`: its public suffix plus one label. A port in `host` is ignored.

    IP literals are their own domain, and so is a name that is itself a public suffix or has a single label.
    """
    if host.startswith("["):
        return host[: host.index("]") + 1]
    name = host.partition(":")[0].removesuffix(".")
    if _IPV4(name):
        return name
    return _public_suffixes().privatesuffix(name) or name


def has_several_domains(name: str) -> bool:
    """Return True if hosts below `name`, a host without port, may have different registrable domains.

    This holds for public suffixes, such as `co.uk`, and for names with a public suffix below them. For example,
    `b.s3.amazonaws.com` is a registrable domain below `amazonaws.com`.
    """
    return registrable_domain(f"x.{name}") != registrable_domain(name) or name in _above_suffixes()


@cache
def _above_suffixes() -> frozenset[str]:
    """Return all names that have a public suffix below them, in the form that canonical URLs have."""
    suffixes = (line.lower().split(" ")[0].strip() for line in _suffix_lines())
    names: set[str] = set()
    for suffix in suffixes:
        if suffix and not suffix.startswith(("//", "!")):
            labels = suffix.split(".")
            names.update(".".join(labels[start:]) for start in range(1, len(labels)))
    places = (locate(f"http://{name}/") for name in names)
    return frozenset(place.host for place in places if place is not None)


@lru_cache(maxsize=HOST_CACHE)
def partition_of(host: str, partitions: int) -> Partition:
    """Return the partition of `host`: blake3(registrable domain or IP literal) mod `partitions`.

    All hosts of one domain are in the same partition.
    """
    digest = blake3(registrable_domain(host).encode()).digest(length=8)
    return Partition(int.from_bytes(digest, "big") % partitions)
