"""events and logs: what happens in the cluster, as it happens; a lost connection is made again without a gap."""

import argparse
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from cli.ctl.cells import dated, leaves, printable, shown
from cli.ctl.client import path
from cli.ctl.desk import Desk, Verbs
from cli.ctl.feed import ENDED, Event, follow, kept
from cli.exits import Exit

GAP: Final = "gap"
"""The kind of the event that tells of others that are not kept any more."""

_OF_CRAWL: Final = ("crawl", "dead-letter")
_OF_CLUSTER: Final = (*_OF_CRAWL, "alarm", "master", "worker", "leader", "room", "config")
_PROGRESS: Final = "progress"
_COUNTERS: Final = ("pages", "queued", "leased", "failed")


def declare(verbs: Verbs) -> None:
    """Declare the verbs."""
    events = verbs.add("events", "what happened in the cluster, or in one crawl, and what happens", _events)
    events.add_argument("-c", "--crawl", metavar="CRAWL", help="of this crawl alone")
    _options(events)
    logs = verbs.add("logs", "what happened in a crawl, and what happens", _events)
    logs.add_argument("crawl", metavar="CRAWL")
    _options(logs)


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-f", "--follow", action="store_true", help="what happens from now on, until interrupted")
    parser.add_argument(
        "--kind",
        action="append",
        metavar="KIND",
        help=f"{', '.join(_OF_CLUSTER)} or {_PROGRESS}; repeatable (default: all but {_PROGRESS})",
    )
    parser.add_argument("--since", metavar="ID", help="what came behind the event of this id; 0: all that is kept")


def _events(desk: Desk, arguments: argparse.Namespace) -> int:
    at = path("events") if arguments.crawl is None else path("crawls", arguments.crawl, "events")
    query = {"kind": arguments.kind or list(_OF_CLUSTER if arguments.crawl is None else _OF_CRAWL)}
    found: Iterator[Event | str] = (
        follow(desk.client, at, query, last_id=arguments.since)
        if arguments.follow
        else kept(desk.client, at, query, last_id=arguments.since)
    )
    for event in found:
        if isinstance(event, str):
            desk.note(event)
        else:
            _show(desk, event)
    return Exit.OK


def _show(desk: Desk, event: Event) -> None:
    try:
        body: Any = msgspec.json.decode(event.data)
    except msgspec.DecodeError:
        body = event.data
    if event.kind == ENDED:
        if body == {"reason": "deleted"}:
            desk.note("the crawl was deleted or begun anew: nothing more comes of it")
    elif not desk.output.for_people:
        desk.output.event({"id": event.id, "kind": event.kind, "data": body})
    elif event.kind == GAP:
        desk.note(f"some events are not kept any more: between {shown(body.get('after'))} and {event.id}")
    else:
        desk.output.say(line_of(event, body))


def line_of(event: Event, body: Any) -> str:
    """`2030-01-01 00:00:00 UTC  crawl finished  docs  state=finished reason=complete`."""
    if not isinstance(body, dict):
        return printable(f"{event.kind}  {body}")
    about = f"{event.kind} {shown(body.get('action'))}"
    what = shown(body.get("crawl") or body.get("about"))
    data = body.get("data") or {}
    said = _progress(data) if event.kind == _PROGRESS else _values(data)
    return f"{dated(body.get('at'))}  {printable(about):<20}  {what}  {said}".rstrip()


def _values(data: Any) -> str:
    """What there is, without what only programs want."""
    return " ".join(f"{name}={shown(value)}" for name, value in leaves(data) if not name.endswith("_ms"))


def _progress(data: Any) -> str:
    """The counters that move, and the rates."""
    said = [f"{name}={data[name]:,}" for name in _COUNTERS if isinstance(data.get(name), int)]
    rates = data.get("rates", [])
    said += [f"{shown(rate.get('pages_per_s'))}/s over {shown(rate.get('window_s'))}s" for rate in rates]
    return " ".join(said)
