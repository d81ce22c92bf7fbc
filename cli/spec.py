"""From the command line and a spec file to one crawl spec: flags replace the fields of the file that they name.

Values stay text until the spec's own rules judge them, so that all problems are told at once, each with its field and
the flag that set it.
"""

import argparse
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from cli.exits import Usage
from cli.written import document, text_of
from shared.domain.crawl import CrawlSpec, encode_spec
from shared.domain.meant import url_meant
from shared.domain.spec_parse import SpecError, parse_spec
from shared.domain.url import canonicalize, with_scheme

OUTAGE_S: Final = 600
"""How long `orb crawl` waits for a site that stops answering, unless told otherwise: a person is waiting, too."""

_REQUESTS: Final = "the changed settings of requests hold from now on; what failed without an answer is tried again"
_EFFECTS: Final = {
    "seeds": "new seeds are added; seeds that are left out stay in the crawl",
    "scope": "the changed scope holds for links found from now on: URLs that are queued stay, and pages already "
    "fetched are not read again for links (--fresh does that)",
    "extract": "the changed rules hold for pages fetched from now on: pages already fetched are not read again "
    "(--fresh does that)",
    "budget": "the crawl goes on up to the changed limits, which count what it has done already",
    **dict.fromkeys(("politeness", "fetch", "retry", "egress"), _REQUESTS),
}
"""What a change in a section of the spec does to a crawl that goes on."""

_DURATION: Final = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s?)?").fullmatch


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag that sets a field of the spec: how it is written, the field's path, the text beside it in the help, and
    what to write where the field's own rules do not say it."""

    name: str
    path: str
    metavar: str
    help: str
    many: bool = False
    hint: str = ""

    @property
    def attribute(self) -> str:
        """Where argparse keeps it."""
        return self.name.removeprefix("--").replace("-", "_")


FLAGS: Final = (
    Flag("--max-pages", "budget.max_pages", "N", "stop after N pages"),
    Flag("--max-depth", "scope.max_depth", "N", "follow links at most N deep (0: the seeds alone)"),
    Flag("--max-time", "budget.max_seconds", "TIME", "stop after this much time at work: 90s, 15m, 2h30m",
         hint=", and written as 90s, 15m or 2h30m"),
    Flag("--max-bytes", "budget.max_bytes", "N", "stop after N bytes of pages (by up to what is in flight over)"),
    Flag("--delay", "politeness.delay_s", "S", "seconds from a response's end to the host's next request (default 1)"),
    Flag("--outage", "retry.outage_s", "TIME", "wait this long for a site that stops answering (default 10m)",
         hint=", and written as 90s, 15m or 2h30m"),
    Flag("--scope", "scope.mode", "MODE", "which links belong: host (default), domain, prefix (below the seed), any"),
    Flag("--include", "scope.include", "REGEX", "follow only URLs in which this is found; may be repeated", many=True),
    Flag("--exclude", "scope.exclude", "REGEX", "never fetch URLs in which this is found; may be repeated", many=True),
    Flag("--contact", "fetch.contact", "URL|MAIL", "who answers for this crawl; sent in the User-Agent"),
    Flag("--user-agent", "fetch.user_agent", "TEXT", "send this User-Agent instead of orb/VERSION (+CONTACT)"),
    Flag("--allow-net", "egress.allow", "CIDR", "let private addresses of this network be reached; may be repeated",
         many=True),
)  # fmt: skip


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Declare the flags that set fields of the spec."""
    group = parser.add_argument_group(
        "what is crawled, and how (each replaces the field of the spec; `none` takes a limit away)"
    )
    for flag in FLAGS:
        action = "append" if flag.many else "store"
        group.add_argument(flag.name, metavar=flag.metavar, action=action, help=f"{flag.help} [{flag.path}]")
    group.add_argument("--no-robots", action="store_true", help="do not obey robots.txt [politeness.obey_robots]")


def written(path: Path) -> dict[str, Any]:
    """What a spec file says. Usage with line and column where it is not YAML."""
    data = document(text_of(path, "spec"), str(path))
    if data is None:
        raise Usage(f"the spec {path} is empty; it needs at least `seeds: [https://example.org/]`.")
    if not isinstance(data, dict):
        raise Usage(f"the spec {path} must be a mapping of fields such as `seeds:` and `scope:`, not a {_kind(data)}.")
    return data


def stored(spec: CrawlSpec) -> dict[str, Any]:
    """A spec as a spec file would say it."""
    data: dict[str, Any] = msgspec.json.decode(encode_spec(spec))
    return data


def merged(data: Mapping[str, Any], urls: list[str], arguments: argparse.Namespace) -> dict[str, Any]:
    """`data` with what the command line sets; URLs replace its seeds."""
    result: dict[str, Any] = dict(data)
    if urls:
        result["seeds"] = list(urls)
    for flag in FLAGS:
        value = getattr(arguments, flag.attribute)
        if value is not None:
            _set(result, flag.path, list(value) if flag.many else _scalar(flag, value))
    if arguments.no_robots:
        _set(result, "politeness.obey_robots", False)
    return result


def with_outage(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return `data` with the outage that `orb crawl` waits for, unless it says another."""
    result = dict(data)
    retry = result.get("retry")
    if retry is None or (isinstance(retry, dict) and "outage_s" not in retry):
        _set(result, "retry.outage_s", OUTAGE_S)
    return result


def declared(data: Mapping[str, Any], source: str, arguments: argparse.Namespace) -> CrawlSpec:
    """The crawl spec that `data` declares; Usage with every problem, its field, and the flag that set it."""
    try:
        return parse_spec(data)
    except SpecError as error:
        given = {flag.path: flag.name + flag.hint for flag in FLAGS if getattr(arguments, flag.attribute) is not None}
        if arguments.urls:
            given["seeds"] = "URL"
        lines = []
        for problem in error.problems:
            name = next((name for path, name in given.items() if _at(problem.path, path)), None)
            lines.append(f"  {problem}" + (f" [given as {name}]" if name else ""))
        count = f"{len(lines)} problems" if len(lines) > 1 else "a problem"
        raise Usage(f"{source} has {count}:\n" + "\n".join(lines)) from None


def seed_urls(urls: list[str]) -> tuple[list[str], list[str]]:
    """URLs as given on the command line, a scheme put before those without one; and what to say about it."""
    seeds, notes = [], []
    for url in urls:
        text = url.strip()
        if "://" in text:
            seeds.append(text)
            continue
        if text.endswith((".yaml", ".yml", ".json")) and Path(text).is_file():
            raise Usage(f"{text} is a file and not a URL; did you mean `--spec {text}`?")
        if (meant := url_meant(text)) is not None:
            raise Usage(f"{url!r} is not an http or https URL; did you mean `{meant}`?")
        assumed = canonicalize(with_scheme(text))
        if assumed is None or "@" in text or text.startswith(("/", ".")):
            raise Usage(f"{url!r} is not an http or https URL; write it as https://example.org/.")
        seeds.append(assumed)
        notes.append(f"{text} has no scheme: taken as {assumed}")
    return seeds, notes


def changed_fields(old: CrawlSpec, new: CrawlSpec) -> list[str]:
    """What differs between two specs, one `field: old -> new` each, in the order of the spec."""
    before, after = _flat(stored(old)), _flat(stored(new))
    return [
        f"{path}: {_brief(before.get(path))} -> {_brief(after.get(path))}"
        for path in dict.fromkeys((*after, *before))
        if before.get(path) != after.get(path)
    ]


def effects(changed: list[str]) -> list[str]:
    """Return what the changes of a spec will do, in sentences. `changed` is as `changed_fields` has them."""
    sections = [re.split(r"[.:\[]", field, maxsplit=1)[0] for field in changed]
    return list(dict.fromkeys(_EFFECTS[section] for section in sections if section in _EFFECTS))


def seconds_of(text: str) -> float | None:
    """`90`, `90s`, `15m`, `2h30m`, `7d` as seconds; None where it is no length of time."""
    match = _DURATION(text) if text else None
    if match is None:
        return None
    days, hours, minutes, seconds = (float(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def _flat(data: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in data.items():
        if isinstance(value, dict) and value:
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat


def _brief(value: object) -> str:
    if isinstance(value, list) and value and isinstance(value[0], dict) and "url" in value[0]:
        value = [seed["url"] for seed in value]
    if isinstance(value, list):
        return ", ".join(map(str, value[:3])) + (f" and {len(value) - 3} more" if len(value) > 3 else "") or "none"
    return "none" if value is None else str(value)


def _set(data: dict[str, Any], path: str, value: object) -> None:
    """Set a field; a section that is not a mapping stays as it is, for the rules to say so."""
    section, _, name = path.partition(".")
    inner = data.get(section)
    if inner is None or isinstance(inner, dict):
        data[section] = {**(inner or {}), name: value}


def _scalar(flag: Flag, text: str) -> object:
    """The value that a flag's text stands for (None of `none`, where there may be no limit), or the text itself, for
    the rules to refuse."""
    if text == "none" and flag.metavar in ("N", "TIME"):
        return None
    if flag.metavar == "TIME":
        length = seconds_of(text)
        return text if length is None else max(1, round(length))
    if flag.metavar in ("N", "S"):
        for number in (int, float):
            try:
                return number(text)
            except ValueError:
                continue
    return text


def _at(problem: str, path: str) -> bool:
    return problem == path or problem.startswith((f"{path}[", f"{path}."))


def _kind(data: object) -> str:
    return "list" if isinstance(data, list) else "single value"
