"""Verbs events and logs of `orb ctl`: print the stored events of the cluster or of a crawl, and follow new ones."""

import argparse
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from cli.ctl.cells import dated, leaves, shown
from cli.ctl.client import path
from cli.ctl.feed import ENDED, SseEvent, follow, kept
from cli.ctl.verb_context import VerbContext, Verbs
from cli.terminal.exits import Exit
from cli.terminal.printable import printable

GAP: Final = "gap"
"""The kind of an event that reports that some earlier events are no longer stored."""

_OF_CRAWL: Final = ("crawl", "dead_letter")
_OF_CLUSTER: Final = (*_OF_CRAWL, "alarm", "master", "worker", "leader", "resource_pressure", "config")
_PROGRESS: Final = "progress"
_COUNTERS: Final = ("pages", "queued", "leased", "failed")


def declare(verbs: Verbs) -> None:
    """Add the verbs events and logs to `orb ctl`."""
    events = verbs.add("events", "show events of the cluster or of one crawl", _events)
    events.add_argument("-c", "--crawl", metavar="CRAWL", help="only of this crawl")
    _options(events)
    logs = verbs.add("logs", "show events of a crawl", _events)
    logs.add_argument("crawl", metavar="CRAWL")
    _options(logs)


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-f", "--follow", action="store_true", help="follow new events until interrupted")
    parser.add_argument(
        "--kind",
        action="append",
        metavar="KIND",
        help=f"{', '.join(_OF_CLUSTER)} or {_PROGRESS}; repeatable (default: all but {_PROGRESS})",
    )
    parser.add_argument("--since", metavar="ID", help="events after the one with this id; 0: all stored events")


def _events(desk: VerbContext, arguments: argparse.Namespace) -> int:
    at = path("events") if arguments.crawl is None else path("crawls", arguments.crawl, "events")
    query = {"kind": arguments.kind or list(_OF_CLUSTER if arguments.crawl is None else _OF_CRAWL)}
    stream: Iterator[SseEvent | str] = (
        follow(desk.client, at, query, last_id=arguments.since)
        if arguments.follow
        else kept(desk.client, at, query, last_id=arguments.since)
    )
    for event in stream:
        if isinstance(event, str):
            desk.note(event)
        else:
            _show(desk, event)
    return Exit.OK


def _show(desk: VerbContext, event: SseEvent) -> None:
    try:
        body: Any = msgspec.json.decode(event.data)
    except msgspec.DecodeError:
        body = event.data
    if event.kind == ENDED:
        if body == {"reason": "deleted"}:
            desk.note("the crawl was deleted or reset: no more events follow")
    elif not desk.output.for_people:
        desk.output.event({"id": event.id, "kind": event.kind, "data": body})
    elif event.kind == GAP:
        desk.note(f"some events are no longer stored: between {shown(body.get('after'))} and {event.id}")
    else:
        desk.output.say(line_of(event, body))


def line_of(event: SseEvent, body: Any) -> str:
    """Return an event as a line: `2030-01-01 00:00:00 UTC crawl finished docs state=finished reason=complete`.

    `body` is the decoded JSON of the event's data.
    """
    if not isinstance(body, dict):
        return printable(f"{event.kind}  {body}")
    about = f"{event.kind} {shown(body.get('action'))}"
    what = shown(body.get("crawl") or body.get("about"))
    data = body.get("data") or {}
    text = _progress(data) if event.kind == _PROGRESS else _values(data)
    return f"{dated(body.get('at'))}  {printable(about):<20}  {what}  {text}".rstrip()


def _values(data: Any) -> str:
    """Return all values of an event's data as `name=value ...`. Leave out nulls and fields that end in `_ms`."""
    return " ".join(f"{name}={shown(value)}" for name, value in leaves(data) if not name.endswith("_ms"))


def _progress(data: Any) -> str:
    """Return the main counters of a progress event, and its rates: `pages=1,204 queued=87 12.5/s over 10s`."""
    parts = [f"{name}={data[name]:,}" for name in _COUNTERS if isinstance(data.get(name), int)]
    rates = data.get("rates", [])
    parts += [f"{shown(rate.get('pages_per_s'))}/s over {shown(rate.get('window_s'))}s" for rate in rates]
    return " ".join(parts)
