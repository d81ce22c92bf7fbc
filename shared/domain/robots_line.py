"""Which line of a robots.txt decides about a URL: for people, who want to see it.

The parser says whether a URL may be fetched and not why, so the file is walked here once more, by RFC 9309: of the
groups that name us, or else those of `*`, the longest pattern that matches decides, and allow wins a tie. Whether a
group names us and whether a pattern matches is asked of the parser, one at a time. What is found is shown only where it
comes to the parser's own verdict about the whole file, which is what counts.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from shared.domain.robots import MAX_ROBOTS_BYTES, RobotsRules

MOST_RULES: Final = 5_000
"""Of a longer group no line is shown: each would be parsed by itself."""

_LINE: Final = re.compile(r"\s*(user-?agent|allow|disallow)\s*:\s*([^#]*)", re.IGNORECASE)
_PROBE: Final = "http://probe.test/"


@dataclass(frozen=True, slots=True)
class RobotsLine:
    """A rule: its line counting from 1, the line itself, the group it stands in, and what it says."""

    number: int
    text: str
    group: str
    allows: bool


class _Rule(NamedTuple):
    agents: tuple[str, ...]
    number: int
    text: str
    allows: bool
    pattern: str


def deciding_line(body: bytes, url: str, agent: str) -> RobotsLine | None:
    """The line that decides about the canonical `url` for `agent` (a product token); None where no rule matches it."""
    rules = list(_rules(body[:MAX_ROBOTS_BYTES].decode("utf-8-sig", "replace")))
    group = _group_of(agent, {name for rule in rules for name in rule.agents})
    ours = [rule for rule in rules if group in rule.agents]
    if group is None or len(ours) > MOST_RULES:
        return None
    matching = [rule for rule in ours if _matches(rule.pattern, url)]
    if not matching:
        return None
    best = max(matching, key=lambda rule: (len(rule.pattern), rule.allows))
    if best.allows != RobotsRules.parse(body).allows(url, agent):
        return None
    return RobotsLine(best.number, best.text, group, best.allows)


def _rules(text: str) -> Iterator[_Rule]:
    """Every rule with a pattern, under the agents of its group."""
    agents: list[str] = []
    naming = False
    for number, line in enumerate(text.splitlines(), 1):
        found = _LINE.match(line)
        if found is None:
            continue
        field, value = found[1].lower(), found[2].strip()
        if field.startswith("user"):
            name = value.lower().partition("/")[0]  # what follows is a version nobody can match by
            agents = [*agents, name] if naming else [name]
            naming = True
            continue
        naming = False
        if value:
            yield _Rule(tuple(agents), number, line.strip(), field == "allow", value)


def _group_of(agent: str, names: set[str]) -> str | None:
    """The group that holds for us: the longest name that is ours, else `*`."""
    ours = [name for name in names if name != "*" and not _parsed(name, "/").allows(_PROBE, agent)]
    return max(ours, key=len, default="*" if "*" in names else None)


def _matches(pattern: str, url: str) -> bool:
    return not _parsed("*", pattern).allows(url, "any")


def _parsed(agent: str, pattern: str) -> RobotsRules:
    return RobotsRules.parse(f"User-agent: {agent}\nDisallow: {pattern}\n".encode())
