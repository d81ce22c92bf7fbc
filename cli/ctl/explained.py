"""Crawls, their numbers, and the reasons of URLs, laid out for people. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import yaml

from cli.ctl.cells import NONE, Now, length, picked, shown
from cli.ctl.columns import crawl_state
from cli.ctl.describing import Section, flat, told
from cli.ctl.resources import HOSTS, MASTERS, Resource
from cli.ctl.tables import Column, laid_out, offered
from cli.pace import amount, count, rate

_MOST_REASONS: Final = 12


def sections_of(title: str, body: Mapping[str, Any], now: Now) -> list[Section]:
    """Any resource: every value on its line; lists of things as tables of their own."""
    plain = {name: value for name, value in body.items() if not _is_list_of_things(value)}
    lists = {name: value for name, value in body.items() if _is_list_of_things(value)}
    sections = [Section(title, flat(plain, now))]
    sections += [Section(name, (), _table(_columns_of(things), things, now)) for name, things in lists.items()]
    return sections


def cluster_sections(title: str, body: Mapping[str, Any], now: Now) -> list[Section]:
    """The cluster; the partitions by owner."""
    owners: dict[str, list[int]] = {}
    for partition, owner in body["partitions"].items():
        owners.setdefault(shown(owner) if owner is not None else "nobody", []).append(int(partition))
    owned = [(owner, _ranges(sorted(numbers))) for owner, numbers in sorted(owners.items())]
    plain = {name: value for name, value in body.items() if name not in ("partitions", "masters")}
    masters = Section("masters", (), table(MASTERS, body["masters"], now))
    return [Section(title, flat(plain, now)), masters, Section("partitions by owner", owned)]


def _ranges(numbers: Sequence[int]) -> str:
    """`0-3, 7`."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][-1] + 1:
            found[-1] = [found[-1][0], number]
        else:
            found.append([number])
    return ", ".join("-".join(map(str, dict.fromkeys(each))) for each in found)


def crawl_sections(whole: Mapping[str, Any], now: Now) -> list[Section]:
    """A crawl with its progress, its numbers and its spec."""
    crawl, progress = whole["crawl"], whole["progress"]
    rows = [
        ("state", crawl_state(crawl, now)),
        ("legal now", ", ".join(map(shown, crawl.get("legal", []))) or NONE),
        ("revision", f"{crawl['revision']} (crawl {crawl['id']})"),
        ("labels", shown(crawl.get("labels"))),
        *((label, told(crawl.get(name), now)) for label, name in _MOMENTS if crawl.get(name) is not None),
        ("worked on", length(progress["active_s"])),
        ("pages", f"{count(progress['pages'])}, {amount(progress['bytes'])}, {rate(progress['pages_per_s'])} over all"),
        (
            "settled",
            f"{count(progress['settled'])} of {count(progress['known'])} URLs in scope ({progress['share']:.1%})",
        ),
    ]
    spec = yaml.safe_dump(crawl["spec"], sort_keys=False, allow_unicode=True, width=100).splitlines()
    return [Section(shown(crawl["name"]), rows), *stats_sections(whole["stats"], now), Section("spec", (), spec)]


_MOMENTS: Final = (("created", "created_at"), ("started", "started_at"), ("finished", "finished_at"))


def stats_sections(stats: Mapping[str, Any], now: Now) -> list[Section]:
    """A crawl's numbers: what became of URLs, the identities, answers and reasons, the greatest hosts."""
    counters = [(shown(name), count(number)) for name, number in stats["counters"].items()]
    identity = stats["identity"]
    drift = {name: value for name, value in identity.items() if value}
    counters.append(("identities", "both hold" if not drift else f"drift: {shown(drift)}"))
    tallies = [(shown(kind).replace("_", " "), _ranked(counts)) for kind, counts in stats["tallies"].items() if counts]
    sections = [Section("numbers", counters)]
    if rates := stats.get("rates"):
        lately = [(f"last {each['window_s']} s", _rate(each)) for each in rates.get("over", [])]
        sections.append(Section("rates", [*lately, ("counted", told(rates.get("counted_at"), now))]))
    if tallies:
        sections.append(Section("answers and reasons", tallies))
    if hosts := stats.get("top_hosts"):
        sections.append(Section("hosts with the most pages", (), table(HOSTS, hosts, now)))
    return sections


def lag_sections(body: Mapping[str, Any], now: Now) -> list[Section]:
    """What waits, in the order in which it moves on."""
    rows = []
    for name, queue in body.items():
        if not isinstance(queue, dict):
            if queue is None:
                rows.append((name.replace("_", " "), "not known: NATS does not answer"))
            continue
        many = f"{count(queue['count'])}{' or more' if queue.get('at_least') else ''}"
        oldest = queue.get("oldest_s")
        rows.append((name.replace("_", " "), many if oldest is None else f"{many}, the oldest for {length(oldest)}"))
    return [Section("", rows)]


def table(resource: Resource, things: Sequence[Mapping[str, Any]], now: Now) -> list[str]:
    """Things as `get` lists them."""
    return _table(offered(resource.columns, wide=False), things, now)


def _columns_of(things: Sequence[Mapping[str, Any]]) -> list[Column]:
    """A column for every field that a thing has."""
    names = dict.fromkeys(name for thing in things for name in thing)
    return [Column(name.replace("_", " ").upper(), picked(name)) for name in names]


def _table(columns: Sequence[Column], things: Sequence[Mapping[str, Any]], now: Now) -> list[str]:
    rows = [[column.cell(thing, now) for column in columns] for thing in things]
    layout = laid_out(columns, rows, None)
    return ["".join(text for text, _ in layout.line(row)).rstrip() for row in [layout.titles(), *rows]]


def explanation(body: Mapping[str, Any], now: Now) -> list[Section]:
    """Why a URL is where it is, and every rule with its verdict."""
    state = shown(body.get("state")) if body.get("known") else "unknown: the crawl has never heard of it"
    why = [str(each) for each in body.get("why", [])]
    rows = [("state", state), *(("why" if place == 0 else "", text) for place, text in enumerate(why))]
    if body.get("why_not_now"):
        rows.append(("why not now", shown(body["why_not_now"])))
    if body.get("linked_from"):
        rows.append(("judged as", f"a link one level deep, from a page on {shown(body['linked_from'])}"))
    rules = body.get("rules") or []
    widest = max((len(shown(rule.get("rule"))) for rule in rules), default=0)
    verdicts = [
        f"{'ok' if rule.get('allowed') else 'NO'}  {shown(rule.get('rule')):<{widest}}  {shown(rule.get('detail'))}"
        for rule in rules
    ]
    sections = [Section(shown(body["url"]), rows)]
    return [*sections, Section("rules, in the order they are asked", (), verdicts)] if verdicts else sections


def _rate(lately: Mapping[str, Any]) -> str:
    return f"{rate(lately['pages_per_s'])} pages, {amount(lately['bytes_per_s'])}/s"


def _ranked(counts: Mapping[str, int]) -> str:
    """The greatest first."""
    ranked = sorted(counts.items(), key=lambda each: (-each[1], each[0]))
    rest = f", and {len(ranked) - _MOST_REASONS} more" if len(ranked) > _MOST_REASONS else ""
    return ", ".join(f"{shown(name)} {count(number)}" for name, number in ranked[:_MOST_REASONS]) + rest


def _is_list_of_things(value: object) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict)
