"""Converts answers of the API to sections of text for people: crawls, counters, the cluster, explanations of URLs.

The functions only return text, and print nothing."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import yaml

from cli.ctl.cells import NONE, Now, length, picked, shown
from cli.ctl.columns import crawl_state
from cli.ctl.resources import HOSTS, MASTERS, ResourceKind
from cli.ctl.sections import Section, flat, value_text
from cli.ctl.tables import Column, laid_out, offered
from cli.terminal.display_rates import amount, count, rate

_MAX_REASONS: Final = 12


def sections_of(title: str, body: Mapping[str, Any], now: Now) -> list[Section]:
    """Return sections that show any JSON object: a line for each value, and a table for each list of objects."""
    plain = {name: value for name, value in body.items() if not _is_list_of_things(value)}
    lists = {name: value for name, value in body.items() if _is_list_of_things(value)}
    sections = [Section(title, flat(plain, now))]
    sections += [Section(name, (), _table(_columns_of(things), things, now)) for name, things in lists.items()]
    return sections


def cluster_sections(title: str, body: Mapping[str, Any], now: Now) -> list[Section]:
    """Return sections that show the cluster: its state, its masters, and which partitions each owner has."""
    owners: dict[str, list[int]] = {}
    for partition, owner in body["partitions"].items():
        owners.setdefault(shown(owner) if owner is not None else "none", []).append(int(partition))
    owned = [(owner, _ranges(sorted(numbers))) for owner, numbers in sorted(owners.items())]
    plain = {name: value for name, value in body.items() if name not in ("partitions", "masters")}
    masters = Section("masters", (), table(MASTERS, body["masters"], now))
    return [Section(title, flat(plain, now)), masters, Section("partitions by owner", owned)]


def _ranges(numbers: Sequence[int]) -> str:
    """Return ascending numbers as ranges: `0-3, 7`."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][-1] + 1:
            ranges[-1] = [ranges[-1][0], number]
        else:
            ranges.append([number])
    return ", ".join("-".join(map(str, dict.fromkeys(each))) for each in ranges)


DRIFTED: Final = ", but a verb changed that: apply the declaration again"


def crawl_sections(whole: Mapping[str, Any], now: Now) -> list[Section]:
    """Return sections that show a crawl: its state and progress, its counters and its spec.

    `whole` has three of the API's answers about the crawl, by the keys `crawl`, `progress` and `stats`.
    """
    crawl, progress = whole["crawl"], whole["progress"]
    rows = [
        ("state", crawl_state(crawl, now)),
        *([("declared", crawl["desired"] + DRIFTED * crawl["drifted"])] if crawl.get("desired") else []),
        ("allowed verbs", ", ".join(map(shown, crawl["allowed_verbs"])) or NONE),
        ("revision", f"{crawl['revision']} (crawl {crawl['id']})"),
        ("labels", shown(crawl.get("labels"))),
        *((label, value_text(crawl.get(name), now)) for label, name in _MOMENTS if crawl.get(name) is not None),
        ("active", length(progress["active_s"])),
        ("pages", f"{count(progress['pages'])}, {amount(progress['bytes'])}, {rate(progress['pages_per_s'])} over all"),
        (
            "completed",
            f"{count(progress['completed'])} of {count(progress['known'])} URLs in scope ({progress['progress']:.1%})",
        ),
        *_waits(progress["waits"]),
    ]
    spec = yaml.safe_dump(crawl["spec"], sort_keys=False, allow_unicode=True, width=100).splitlines()
    return [Section(shown(crawl["name"]), rows), *stats_sections(whole["stats"], now), Section("spec", (), spec)]


def _waits(waits: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return rows (label, text) that show which hosts of a crawl wait, and why. Return an empty list if no host waits.

    `waits` is the field of this name in the API's progress of a crawl.
    """
    if not waits["number"]:
        return []
    hosts = "1 host waits" if waits["number"] == 1 else f"{count(waits['number'])} hosts wait"
    if waits["more"]:
        hosts += " of those examined"
    head = "no host gets requests now" if waits["standing"] else hosts
    rows = [("waits", head)]
    for each in waits["hosts"]:
        lifted = each["reason"] in ("refuses", "silent")
        rows.append(("", each["text"] + f"; to ask at once: orb ctl hosts unblock {each['host']}" * lifted))
    return rows


_MOMENTS: Final = (("created", "created_at"), ("started", "started_at"), ("finished", "finished_at"))


def stats_sections(stats: Mapping[str, Any], now: Now) -> list[Section]:
    """Return sections that show a crawl's counters: results of URLs, rates, statuses and reasons, and largest hosts.

    They also show any difference between counters that must agree.
    """
    counters = [(shown(name), count(number)) for name, number in stats["counters"].items()]
    identity = stats["identity"]
    drift = {name: value for name, value in identity.items() if value}
    counters.append(("identities", "both hold" if not drift else f"drift: {shown(drift)}"))
    tallies = [(shown(kind).replace("_", " "), _ranked(counts)) for kind, counts in stats["tallies"].items() if counts]
    sections = [Section("numbers", counters)]
    if rates := stats.get("rates"):
        lately = [(f"last {each['window_s']} s", _rate(each)) for each in rates.get("windows", [])]
        sections.append(Section("rates", [*lately, ("counted", value_text(rates.get("counted_at"), now))]))
    if tallies:
        sections.append(Section("answers and reasons", tallies))
    if hosts := stats.get("top_hosts"):
        sections.append(Section("hosts with the most pages", (), table(HOSTS, hosts, now)))
    return sections


def lag_sections(body: Mapping[str, Any], now: Now) -> list[Section]:
    """Return a section that shows, for each stage of work, how many entries wait and how long the oldest has waited."""
    rows = []
    for name, queue in body.items():
        if not isinstance(queue, dict):
            if queue is None:
                rows.append((name.replace("_", " "), "not known: NATS does not answer"))
            continue
        many = f"{count(queue['count'])}{' or more' if queue.get('is_lower_bound') else ''}"
        oldest = queue.get("oldest_s")
        rows.append((name.replace("_", " "), many if oldest is None else f"{many}, the oldest for {length(oldest)}"))
    return [Section("", rows)]


def table(resource: ResourceKind, things: Sequence[Mapping[str, Any]], now: Now) -> list[str]:
    """Return the lines of a table of these resources, with the columns of `orb ctl get`, at full width."""
    return _table(offered(resource.columns, wide=False), things, now)


def _columns_of(things: Sequence[Mapping[str, Any]]) -> list[Column]:
    """Return a column for each field that at least one of the objects has."""
    names = dict.fromkeys(name for thing in things for name in thing)
    return [Column(name.replace("_", " ").upper(), picked(name)) for name in names]


def _table(columns: Sequence[Column], things: Sequence[Mapping[str, Any]], now: Now) -> list[str]:
    rows = [[column.cell(thing, now) for column in columns] for thing in things]
    layout = laid_out(columns, rows, None)
    return ["".join(text for text, _ in layout.line(row)).rstrip() for row in [layout.titles(), *rows]]


def explanation(body: Mapping[str, Any], now: Now) -> list[Section]:
    """Return sections that show why a URL is in its state, and what each rule decides.

    `body`: the API's explanation.
    """
    state = shown(body.get("state")) if body.get("known") else "unknown: the crawl does not know this URL"
    why = [str(each) for each in body.get("why", [])]
    rows = [("state", state), *(("why" if place == 0 else "", text) for place, text in enumerate(why))]
    if body.get("blocking_reason"):
        rows.append(("blocking reason", shown(body["blocking_reason"])))
    if body.get("linked_from"):
        rows.append(("judged as", f"a link one level deep, from a page on {shown(body['linked_from'])}"))
    rules = body.get("rules") or []
    widest = max((len(shown(rule.get("rule"))) for rule in rules), default=0)
    verdicts = [
        f"{'ok' if rule.get('allowed') else 'NO'}  {shown(rule.get('rule')):<{widest}}  {shown(rule.get('detail'))}"
        for rule in rules
    ]
    sections = [Section(shown(body["url"]), rows)]
    return [*sections, Section("rules, in the order of evaluation", (), verdicts)] if verdicts else sections


def _rate(lately: Mapping[str, Any]) -> str:
    return f"{rate(lately['pages_per_s'])} pages, {amount(lately['bytes_per_s'])}/s"


def _ranked(counts: Mapping[str, int]) -> str:
    """Return counts by name as text, the greatest first: `timeout 12, dns 3`. Show at most `_MAX_REASONS` of them."""
    ranked = sorted(counts.items(), key=lambda each: (-each[1], each[0]))
    rest = f", and {len(ranked) - _MAX_REASONS} more" if len(ranked) > _MAX_REASONS else ""
    return ", ".join(f"{shown(name)} {count(number)}" for name, number in ranked[:_MAX_REASONS]) + rest


def _is_list_of_things(value: object) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict)
