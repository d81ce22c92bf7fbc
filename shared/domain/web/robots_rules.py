"""Parse a robots.txt and match URLs against it by RFC 9309, within a time that a hostile file cannot prolong.

A file is read line by line for one product token (the crawler's name). Only the groups that name the token are kept, or
those of `*` if no group names it. A group ends at the first `User-agent` line after a rule. Unknown records and
`Crawl-delay` lines do not end a group (RFC 9309 §2.2.4). Some misspelt field names and a missing colon are accepted.
`Allow: /x/index.html` also allows `/x/`.

Of the rules that match a URL, the one with the longest pattern decides, counted in octets. Of two that are equally
long, the one that allows decides. In a pattern, `*` matches any octets, and a final `$` the end of the URL. Before
patterns and URLs are compared, their percent-encoding is made equal (`_octet`).

A decision does not try every rule. Patterns without `*` are looked up by the prefixes of the URL. A pattern with `*` is
tried only if the URL contains its key, a short piece that few other patterns have (`_rarest`).
"""

import math
import re
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from msgspec import Struct, field

MAX_ALIKE: Final = 2_000
"""How many patterns with `*` may have the same key (a short piece of the pattern, by which it is looked up).

A URL that contains the key is tried against all of them. If there are more, the file counts as unreadable
(`AgentRules.too_costly`).
"""

MAX_CRAWL_DELAY_S: Final = 30 * 86_400.0
"""The greatest crawl-delay in seconds (30 days). A longer one is reduced to it."""

_AGENT, _ALLOW, _DISALLOW, _DELAY = range(4)
_FIELDS: Final = {
    b"user-agent": _AGENT,
    b"useragent": _AGENT,
    b"user agent": _AGENT,
    b"allow": _ALLOW,
    b"disallow": _DISALLOW,
    b"dissallow": _DISALLOW,
    b"dissalow": _DISALLOW,
    b"disalow": _DISALLOW,
    b"diasllow": _DISALLOW,
    b"disallaw": _DISALLOW,
    b"crawl-delay": _DELAY,
    b"crawl delay": _DELAY,
}
_LONGEST_FIELD: Final = max(map(len, _FIELDS))

_TOKEN: Final = re.compile(rb"[A-Za-z0-9_-]+")
_UNUSUAL: Final = re.compile(rb"%[0-9A-Fa-f]{2}|[^A-Za-z0-9\-._~/?!&'()+,;=:@\[\]]")
_UNRESERVED: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_SAME_IN_PATH: Final = _UNRESERVED | frozenset(b"!&'()+,;=:@[]")
_SAME_IN_QUERY: Final = _SAME_IN_PATH | frozenset(b"/?")
_STARS: Final = re.compile(rb"\*+")
_GRAMS: Final = (8, 4, 2, 1)
"""The possible lengths, in octets, of a key: a short part of a pattern with `*`, under which the pattern is stored."""
_INDEX_PAGE: Final = b"/index.html"


class RobotsRule(NamedTuple):
    """A rule of a robots.txt, without its pattern. Of several rules that match a URL, the greatest tuple decides.

    `size`: the length of the pattern in octets. `order`: the negative line number, such as -7 for line 7.
    """

    size: int
    allows: bool
    order: int

    @property
    def line(self) -> int:
        """The rule's line number in the file, counting from 1."""
        return -self.order


class _Wildcard(NamedTuple):
    """A pattern with `*`, split at its stars. `ends`: the pattern ends with `$`, so the last piece must end the URL.

    `least`: the length of the shortest URL that matches, in octets.
    """

    pieces: tuple[bytes, ...]
    ends: bool
    least: int

    def matches(self, target: bytes) -> bool:
        if len(target) < self.least or not target.startswith(self.pieces[0]):
            return False
        at = len(self.pieces[0])
        for piece in self.pieces[1:-1]:
            found = target.find(piece, at)
            if found < 0:
                return False
            at = found + len(piece)
        last = self.pieces[-1]
        if self.ends:
            return target.endswith(last) and len(target) - len(last) >= at
        return target.find(last, at) >= 0


class AgentRules(Struct, frozen=True):
    """The rules of a robots.txt for one product token (a crawler's name).

    `group`: the name of the group that applies, the token or `*`. None: no group applies. `too_costly`: matching could
    take too long, so the caller must treat the file as unreadable.
    """

    group: str | None = None
    crawl_delay_s: float | None = None
    too_costly: bool = False
    _exact: dict[bytes, RobotsRule] = field(default_factory=dict)
    _prefixes: dict[bytes, RobotsRule] = field(default_factory=dict)
    _lengths: tuple[int, ...] = ()
    _wild: dict[bytes, list[tuple[RobotsRule, _Wildcard]]] = field(default_factory=dict)

    def deciding(self, url: str) -> RobotsRule | None:
        """Return the rule that decides whether the canonical `url` may be fetched, or None if no rule matches it."""
        target = _target(url)
        if target == b"/robots.txt":
            return None
        best = self._exact.get(target)
        for length in self._lengths:
            if length <= len(target):
                rule = self._prefixes.get(target[:length])
                if rule is not None:
                    best = rule if best is None else max(best, rule)
        for rule, wildcard in self._candidates(target):
            if (best is None or rule > best) and wildcard.matches(target):
                best = rule
        return best

    def allows(self, url: str) -> bool:
        """Return True if these rules allow to fetch the canonical `url`. It is allowed if no rule matches it."""
        rule = self.deciding(url)
        return rule is None or rule.allows

    def _candidates(self, target: bytes) -> Iterator[tuple[RobotsRule, _Wildcard]]:
        if not self._wild:
            return
        yield from self._wild.get(b"", ())
        for size in _GRAMS:
            pieces = {target[at : at + size] for at in range(len(target) - size + 1)}
            for piece in pieces & self._wild.keys():
                yield from self._wild[piece]


def rules_for(body: bytes, token: str) -> AgentRules:
    """Return the rules in `body`, a robots.txt, for a product token (in any case). Any bytes parse, in linear time."""
    own, anyone = _Group(), _Group()
    name = token.lower().encode()
    named: set[int] = set()  # The groups of the current lines, as indexes into `groups`.
    undelayed: set[int] = set()  # Those of them whose names came after the last Crawl-delay.
    naming = False
    groups = (own, anyone)
    for number, line in enumerate(_lines(body), 1):
        kind, value = _field(line)
        if kind == _AGENT:
            if not naming:
                naming, named, undelayed = True, set(), set()
            group = _named(value, name)
            if group is not None:
                groups[group].named = True
                named.add(group)
                undelayed.add(group)
        elif kind == _DELAY:
            for group in undelayed if naming else named:
                groups[group].delay(value)
            undelayed = set()
        elif kind in (_ALLOW, _DISALLOW):
            naming = False
            for group in named:
                groups[group].add(value, allows=kind == _ALLOW, number=number)
    if own.named:
        return own.rules(token)
    return anyone.rules("*") if anyone.named else AgentRules()


def _lines(body: bytes) -> list[bytes]:
    return body.removeprefix(b"\xef\xbb\xbf").splitlines()


def _field(line: bytes) -> tuple[int | None, bytes]:
    """Return the kind of a line (such as `_ALLOW`) and its value. Return None and b"" for a line of an unknown kind.

    The colon may be missing, as in `Disallow /x`.
    """
    line = line.partition(b"#")[0]
    name, _, value = line.partition(b":")
    name = name.strip()
    if len(name) <= _LONGEST_FIELD:
        kind = _FIELDS.get(name.lower())
        if kind is not None:
            return kind, value.strip()
    words = line.split(None, 2)
    for count in (1, 2):
        if len(words) > count:
            kind = _FIELDS.get(b" ".join(words[:count]).lower())
            if kind is not None:
                return kind, line.split(None, count)[count].strip()
    return None, b""


def _named(value: bytes, name: bytes) -> int | None:
    """Return 0 if a User-agent value names the product token `name`, 1 if it is `*`, and None if it is another token.

    Text after the token in the value, such as a version, is ignored.
    """
    if value == b"*" or value[:2] in (b"* ", b"*\t"):
        return 1
    token = _TOKEN.match(value)
    return 0 if token is not None and token[0].lower() == name else None


class _Group(Struct):
    """All groups of a robots.txt with one name (the token or `*`), merged while the file is read."""

    named: bool = False
    delay_s: float | None = None
    found: dict[bytes, RobotsRule] = field(default_factory=dict)

    def delay(self, value: bytes) -> None:
        """Add a Crawl-delay value. The longest one applies, at most MAX_CRAWL_DELAY_S. An invalid value is ignored."""
        try:
            seconds = float(value)
        except ValueError:
            return
        if math.isfinite(seconds) and seconds >= 0:
            self.delay_s = max(self.delay_s or 0.0, min(seconds, MAX_CRAWL_DELAY_S))

    def add(self, value: bytes, *, allows: bool, number: int) -> None:
        """Add the rule in line `number` with the pattern `value`. An empty pattern adds nothing.

        An allowed index page (`/index.html`) also allows its folder.
        """
        if not value:
            return
        pattern = _pattern(value)
        self._add(pattern, RobotsRule(len(pattern), allows, -number))
        if allows and pattern.endswith(_INDEX_PAGE):
            folder = pattern.removesuffix(_INDEX_PAGE[1:]) + b"$"
            self._add(folder, RobotsRule(len(folder), True, -number))

    def _add(self, pattern: bytes, rule: RobotsRule) -> None:
        """Add a rule. If an earlier rule has an equivalent pattern (`/x*` is equivalent to `/x`), keep only one rule.

        The rule with the longer pattern is kept. If both are equally long, the rule that allows is kept. If both allow
        or both forbid, the earlier rule is kept.
        """
        if b"*" in pattern:
            pattern = _STARS.sub(b"*", pattern)
            if pattern.endswith((b"*", b"*$")):
                pattern = pattern.rstrip(b"$").rstrip(b"*")
        old = self.found.get(pattern)
        self.found[pattern] = rule if old is None else max(old, rule)

    def rules(self, group: str) -> AgentRules:
        exact: dict[bytes, RobotsRule] = {}
        prefixes: dict[bytes, RobotsRule] = {}
        wild: dict[bytes, list[tuple[RobotsRule, _Wildcard]]] = {}
        for pattern, rule in self.found.items():
            if b"*" in pattern:
                wildcard = _wildcard(pattern)
                wild.setdefault(_rarest(wildcard.pieces, wild), []).append((rule, wildcard))
            elif pattern.endswith(b"$"):
                exact[pattern[:-1]] = rule
            else:
                prefixes[pattern] = rule
        lengths = tuple(sorted({len(prefix) for prefix in prefixes}))
        costly = any(len(alike) > MAX_ALIKE for alike in wild.values())
        return AgentRules(group, self.delay_s, costly, exact, prefixes, lengths, wild)


def _wildcard(pattern: bytes) -> _Wildcard:
    ends = pattern.endswith(b"$")
    pieces = tuple(pattern.removesuffix(b"$").split(b"*"))
    return _Wildcard(pieces, ends, sum(map(len, pieces)))


def _rarest(pieces: Iterable[bytes], taken: dict[bytes, list[tuple[RobotsRule, _Wildcard]]]) -> bytes:
    """Return the key under which a pattern with `*` is stored: a short part of it that few other patterns have as key.

    - `pieces`: the parts of the pattern between its stars. The key is the beginning or end of one of them. Its length
      is one of `_GRAMS`. The key is empty if all pieces are empty.
    - `taken`: the patterns stored so far, by key.
    """
    rarest, alike = b"", math.inf
    for piece in sorted(pieces, key=len, reverse=True)[:4]:
        size = next((size for size in _GRAMS if size <= len(piece)), 0)
        for gram in (piece[len(piece) - size :], piece[:size]) if size else ():
            count = len(taken.get(gram, ()))
            if count < alike:
                rarest, alike = gram, count
    return rarest


def _target(url: str) -> bytes:
    """Return the path and query of a canonical URL, in the form in which URLs and patterns are compared."""
    start = url.find("/", url.index("//") + 2)
    return _form(url[start:].encode() if start >= 0 else b"/")


def _pattern(value: bytes) -> bytes:
    ends = value.endswith(b"$")
    return b"*".join(_forms(value.removesuffix(b"$").split(b"*"))) + (b"$" if ends else b"")


def _forms(pieces: Iterable[bytes]) -> Iterator[bytes]:
    in_query = False
    for piece in pieces:
        yield _form(piece, in_query=in_query)
        in_query = in_query or b"?" in piece


def _form(octets: bytes, *, in_query: bool = False) -> bytes:
    if _UNUSUAL.search(octets) is None:
        return octets
    path, mark, query = (b"", b"", octets) if in_query else octets.partition(b"?")
    return _UNUSUAL.sub(_in_path, path) + mark + _UNUSUAL.sub(_in_query, query)


def _in_path(found: re.Match[bytes]) -> bytes:
    return _octet(found[0], _SAME_IN_PATH)


def _in_query(found: re.Match[bytes]) -> bytes:
    return _octet(found[0], _SAME_IN_QUERY)


def _octet(octet: bytes, same: frozenset[int]) -> bytes:
    """Return the standard spelling of one octet of a URL or pattern, so that URLs and patterns can be compared.

    Do not pass a plain character that needs no escape, such as `A`: it has its standard spelling already. `octet` is
    the octet as spelled in the URL or pattern, in one of the other forms:

    - A plain character that must be escaped, such as `<`: return its escape `%3C`.
    - The escape of a character that needs no escape, such as `%41`: return the plain character `A`.
    - Another escape, such as `%3c`: return the escape with upper-case digits, `%3C`.

    `same`: the characters that need no escape, as numbers.
    """
    # `_UNUSUAL` does not match a plain character that needs no escape.
    if len(octet) == 1:
        return b"%%%02X" % octet[0]
    code = int(octet[1:], 16)
    return bytes([code]) if code in same else octet.upper()
