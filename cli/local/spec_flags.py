"""Merges a crawl spec with the command line of `orb crawl`. Flags override fields of the spec.

The values of flags stay text until the spec is checked. So all problems are reported together, each with its field and
the flag that set it.
"""

import argparse
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from cli.terminal.exits import Usage
from shared.domain.crawl.recrawl_spec import Recrawl
from shared.domain.crawl.spec import CrawlSpec, encode_spec
from shared.domain.crawl.spec_parse import SpecError, parse_spec
from shared.domain.suggestions import url_meant
from shared.domain.web.url import canonicalize, with_scheme

MONTH_S: Final = Recrawl().max_s

OUTAGE_S: Final = 600
"""The default of `retry.outage_s` for `orb crawl`: after so many seconds without an answer, a host is given up. It is
short, because a user waits for the end of the crawl."""

_REQUESTS: Final = "the changed request settings apply from now on; URLs that failed without an answer are retried"
_EFFECTS: Final = {
    "seeds": "new seeds are added; seeds that are left out stay in the crawl",
    "scope": "the changed scope applies to queued URLs, to links found from now on, and to the links of stored pages",
    "discover": "sitemaps are read with the next URL of a host, and feeds of pages fetched from now on",
    "extract": "the changed rules apply to pages fetched from now on: pages already fetched are not read again "
    "(--fresh does that)",
    "budget": "the crawl goes on up to the changed limits, which include what it has done already",
    "recrawl": "the changed times apply to each page from its next fetch on",
    "media": "the changed types apply to pages fetched from now on",
    "overrides": "the changed values apply to the next requests, to queued URLs and to links found from now on",
    "priority": "the changed rules apply to URLs found from now on: queued URLs keep their priority",
    **dict.fromkeys(("politeness", "fetch", "retry", "egress"), _REQUESTS),
}
"""For each section of the spec, a sentence on how a change of the section affects a resumed crawl."""

_DURATION: Final = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s?)?").fullmatch


class Flag(msgspec.Struct, frozen=True):
    """A flag of `orb crawl` that sets one field of the spec.

    - `path`: the path of the field, such as `budget.max_pages`.
    - `metavar`: the placeholder for the value in the help, such as N or TIME. It also decides how the value's text is
      converted.
    - `many`: True if the flag may be repeated, so that its values form a list.
    - `hint`: how to write the value, appended to errors. "" if the error of the field suffices.
    """

    name: str
    path: str
    metavar: str
    help: str
    many: bool = False
    hint: str = ""

    @property
    def attribute(self) -> str:
        """The name of the attribute that has the flag's value in the parsed arguments."""
        return self.name.removeprefix("--").replace("-", "_")


FLAGS: Final = (
    Flag("--max-pages", "budget.max_pages", "N", "stop after N pages"),
    Flag("--max-depth", "scope.max_depth", "N", "follow links at most N levels deep (0: only the seeds)"),
    Flag("--max-time", "budget.max_seconds", "TIME", "stop after this running time: 90s, 15m, 2h30m",
         hint=", and written as 90s, 15m or 2h30m"),
    Flag("--max-bytes", "budget.max_bytes", "N", "stop after about N bytes of pages"),
    Flag("--delay", "politeness.delay_s", "S", "seconds from a response to the next request to the host (default 1)"),
    Flag("--outage", "retry.outage_s", "TIME", "wait this long for a site that stops answering (default 10m)",
         hint=", and written as 90s, 15m or 2h30m"),
    Flag("--scope", "scope.mode", "MODE", "links to follow: host (default), domain, prefix (below a seed's path), any"),
    Flag("--include", "scope.include", "REGEX", "follow only URLs that match; repeatable", many=True),
    Flag("--exclude", "scope.exclude", "REGEX", "never fetch URLs that match; repeatable", many=True),
    Flag("--extra-hops", "scope.extra_hops", "N", "follow links that lead out of scope for N hops (0 to 3, default 0)"),
    Flag("--recrawl", "recrawl.min_s", "TIME", "fetch each page again this long after its last fetch: 6h, 1d",
         hint=", and written as 6h, 1d or 7d"),
    Flag("--requisites", "scope.requisites", "MODE",
         "images, stylesheets, scripts and fonts of pages to fetch: none (default), same-host, all"),
    Flag("--max-requisites", "budget.max_requisites", "N", "fetch at most N of them"),
    Flag("--sitemaps", "discover.sitemaps", "MODE",
         "sitemaps to read: none (default), robots (those that robots.txt names), well-known (also /sitemap.xml)"),
    Flag("--contact", "fetch.contact", "URL|MAIL", "URL or mail address of the operator; sent in the User-Agent"),
    Flag("--user-agent", "fetch.user_agent", "TEXT", "send this User-Agent instead of orb/VERSION (+CONTACT)"),
    Flag("--allow-net", "egress.allow", "CIDR", "allow private addresses of this network; repeatable",
         many=True),
)  # fmt: skip


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of `orb crawl` that set fields of the spec."""
    group = parser.add_argument_group(
        "scope, limits and politeness (each overrides the field of the spec; `none` removes a limit)"
    )
    for flag in FLAGS:
        action = "append" if flag.many else "store"
        group.add_argument(flag.name, metavar=flag.metavar, action=action, help=f"{flag.help} [{flag.path}]")
    group.add_argument(
        "--seed-label", metavar="NAME=VALUE", action="append",
        help="label for the pages found from the URLs given here; repeatable [seeds.labels]",
    )  # fmt: skip
    group.add_argument(
        "--seed-source",
        metavar="TEXT",
        help="where the URLs given here come from, kept with their pages [seeds.source]",
    )
    group.add_argument("--feeds", action="store_true", help="read the feeds that pages name [discover.feeds]")
    group.add_argument("--no-robots", action="store_true", help="do not obey robots.txt [politeness.obey_robots]")


def written(path: Path) -> dict[str, Any]:
    """Return the contents of the spec file at `path` as a mapping. The fields of the spec are not checked.

    Raise Usage if the file cannot be read, is no YAML, is empty, or is not a mapping.
    """
    from cli.terminal.yaml_input import document, text_of  # load the YAML library only for a file

    data = document(text_of(path, "spec"), str(path))
    if data is None:
        raise Usage(f"the spec {path} is empty; it needs at least `seeds: [https://example.org/]`.")
    if not isinstance(data, dict):
        raise Usage(f"the spec {path} must be a mapping of fields such as `seeds:` and `scope:`, not a {_kind(data)}.")
    return data


def stored(spec: CrawlSpec) -> dict[str, Any]:
    """Convert a spec to a mapping as a spec file contains it."""
    data: dict[str, Any] = msgspec.json.decode(encode_spec(spec))
    return data


def merged(data: Mapping[str, Any], urls: list[str], arguments: argparse.Namespace) -> dict[str, Any]:
    """Return a copy of the spec `data` with the fields that the command line sets.

    `urls` replace its seeds if there are any. Raise Usage if a flag for seeds is given without URLs.
    """
    result: dict[str, Any] = dict(data)
    context = _seed_context(arguments)
    if urls:
        result["seeds"] = [{"url": url, **context} for url in urls] if context else list(urls)
    elif context:
        raise Usage("--seed-label and --seed-source are for URLs of the command line, and there are none.")
    for flag in FLAGS:
        value = getattr(arguments, flag.attribute)
        if value is not None:
            _set(result, flag.path, list(value) if flag.many else _scalar(flag, value))
    if arguments.feeds:
        _set(result, "discover.feeds", True)
    if arguments.no_robots:
        _set(result, "politeness.obey_robots", False)
    if arguments.recrawl is not None:
        _set_recrawl(result)
    return result


def _seed_context(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the labels and source that the command line gives to its URLs, as fields of a seed.

    Omit what is not given.
    """
    fields: dict[str, Any] = (
        {"labels": labels_given(arguments.seed_label, "--seed-label")} if arguments.seed_label else {}
    )
    return fields | ({"source": arguments.seed_source} if arguments.seed_source else {})


def labels_given(pairs: list[str], flag: str) -> dict[str, str]:
    """Parse labels and return them.

    Raise Usage, with the name of `flag`, if a label is not written as NAME=VALUE, or has two values.
    """
    labels: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise Usage(f"{flag} {pair} is not written as NAME=VALUE.")
        if labels.setdefault(name, value) != value:
            raise Usage(f"{flag} {pair}: the label {name} is given two values.")
    return labels


def _set_recrawl(data: dict[str, Any]) -> None:
    """Complete the section `recrawl` of the spec `data` after --recrawl has set its `min_s`. Change `data` itself.

    - If the field `policy` is missing or `never`, it becomes `fixed`.
    - If `max_s` is less than `min_s`, it becomes `min_s`.
    - If the value of --recrawl is `none`, the section is removed.
    """
    section = data["recrawl"]
    if not isinstance(section, dict):
        return
    if section["min_s"] is None:
        del data["recrawl"]
        return
    if section.get("policy", "never") == "never":
        _set(data, "recrawl.policy", "fixed")
    longest = section.get("max_s", MONTH_S)
    if isinstance(section["min_s"], int) and isinstance(longest, int | float) and longest < section["min_s"]:
        _set(data, "recrawl.max_s", section["min_s"])


def with_outage(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of the spec `data`. If it does not set `retry.outage_s`, the copy sets it to OUTAGE_S."""
    result = dict(data)
    retry = result.get("retry")
    if retry is None or (isinstance(retry, dict) and "outage_s" not in retry):
        _set(result, "retry.outage_s", OUTAGE_S)
    return result


def declared(data: Mapping[str, Any], source: str, arguments: argparse.Namespace) -> CrawlSpec:
    """Convert the spec `data` to a CrawlSpec. Raise Usage with every problem, its field, and the flag that set it.

    `source` says where `data` comes from, for the message.
    """
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
    """Return the URLs of the command line, each with a scheme, and a message for each URL whose scheme was added.

    Raise Usage if a text is not an http or https URL.
    """
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
        refuse_option(text)
        assumed = canonicalize(with_scheme(text))
        if assumed is None or "@" in text or text.startswith(("/", ".")):
            raise Usage(f"{url!r} is not an http or https URL; write it as https://example.org/.")
        seeds.append(assumed)
        notes.append(f"{text} has no scheme: taken as {assumed}")
    return seeds, notes


def refuse_option(text: str) -> None:
    """Raise Usage if `text` begins with a hyphen, because it is probably an option that was written after `--`."""
    if text.startswith("-"):
        raise Usage(f"{text!r} is in the place of a URL; if it is an option, write it before `--`.")


def changed_fields(old: CrawlSpec, new: CrawlSpec) -> list[str]:
    """Return the differences between two specs, each as the text `field: old -> new`, in the order of the fields."""
    before, after = _flat(stored(old)), _flat(stored(new))
    return [
        f"{path}: {_brief(before.get(path))} -> {_brief(after.get(path))}"
        for path in dict.fromkeys((*after, *before))
        if before.get(path) != after.get(path)
    ]


def effects(changed: list[str], *, rescoped: bool = False) -> list[str]:
    """Return sentences that say how the changes of a spec affect the resumed crawl.

    - `changed`: the differences that `changed_fields` returned.
    - `rescoped`: True if the scope differs. Changed seeds alone can change it, for example in mode prefix.
    """
    sections = [re.split(r"[.:\[]", field, maxsplit=1)[0] for field in changed]
    if rescoped:
        sections.append("scope")
    return list(dict.fromkeys(_EFFECTS[section] for section in sections if section in _EFFECTS))


def seconds_of(text: str) -> float | None:
    """Parse a duration such as `90`, `90s`, `15m`, `2h30m` or `7d`.

    Return its seconds, or None if it is not a duration.
    """
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
    """Set the field at `path`, such as `budget.max_pages`, in the spec `data`. Create its section if it is missing.

    Do nothing if the section is not a mapping.
    """
    section, _, name = path.partition(".")
    inner = data.get(section)
    if inner is None or isinstance(inner, dict):
        data[section] = {**(inner or {}), name: value}


def _scalar(flag: Flag, text: str) -> object:
    """Convert the text of a flag to a number, or to seconds for a duration. Return any other text unchanged.

    Return None for the text `none` if the flag's value is a count (N) or a duration (TIME).
    """
    if text == "none" and flag.metavar in ("N", "TIME"):
        return None
    if flag.metavar == "TIME":
        length = seconds_of(text)
        return text if length is None else math.ceil(length)
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
