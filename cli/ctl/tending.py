"""keys, hosts, dead letters and the hot configuration: what keeps a cluster in order."""

import argparse
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import msgspec

from cli.ctl.client import path
from cli.ctl.desk import Desk, Verbs
from cli.ctl.output import as_yaml
from cli.ctl.problems import Refusal
from cli.exits import Exit, Usage
from cli.spec import seconds_of
from cli.written import document, text_of

_CONFIG: Final = path("config")
_AGAIN: Final = 5


def declare(verbs: Verbs) -> None:
    """Declare the verbs."""
    keys = verbs.family("keys", "give and take API keys (`get keys` lists them)")
    create = keys.add("create", "a new key, shown once", _create_key)
    create.add_argument("name", metavar="NAME", help="who or what will use it")
    create.add_argument("--role", choices=("viewer", "operator", "admin"), required=True)
    revoke = keys.add("revoke", "keys that shall open nothing from now on", _revoke_keys)
    revoke.add_argument("ids", nargs="+", metavar="ID")

    hosts = verbs.family("hosts", "spare hosts (`get hosts` lists them)")
    block = hosts.add("block", "ask a host nothing for a while", _block)
    block.add_argument("hosts", nargs="+", metavar="HOST")
    block.add_argument("--for", dest="length", required=True, metavar="TIME", help="90s, 15m, 2h30m, 7d")
    unblock = hosts.add("unblock", "ask it again, also where the host itself wished for peace", _unblock)
    unblock.add_argument("hosts", nargs="+", metavar="HOST")
    delay = hosts.add("delay", "wait at least so long between two requests; 0 takes it back", _delay)
    delay.add_argument("host", metavar="HOST")
    delay.add_argument("seconds", metavar="S")

    letters = verbs.family("dead-letters", "what was given up (`get dead-letters` lists them)")
    for turn, summary in (("replay", "try them again, with fresh attempts"), ("discard", "give them up for good")):
        parser = letters.add(turn, summary, _letters, turn=turn)
        parser.add_argument("ids", nargs="*", metavar="ID")
        parser.add_argument("-c", "--crawl", metavar="CRAWL", help="all of this crawl")

    config = verbs.family("config", "what may be turned while everything runs (`get config-revisions`: what it was)")
    config.add("get", "show it", _get_config)
    put = config.add("put", "replace the whole of it, unless it was changed in between", _put_config)
    put.add_argument("-f", "--file", metavar="FILE", required=True, help="YAML or JSON; - for standard input")
    change = config.add("set", "turn single values; null takes one back to what members were started with", _set_config)
    change.add_argument("values", nargs="+", metavar="NAME=VALUE", help="as worker.visits=64")


def _create_key(desk: Desk, arguments: argparse.Namespace) -> int:
    wanted = {"name": arguments.name, "role": arguments.role}
    made = desk.client.ask("POST", path("api-keys"), body=wanted, repeatable=False).body
    if desk.output.for_people:
        desk.output.say(made["key"])
        desk.note(f"key {made['id']} for {made['name']} ({made['role']}); it is not shown again")
    else:
        desk.output.done(f"key/{made['id']}", "created", made)
    return Exit.OK


def _revoke_keys(desk: Desk, arguments: argparse.Namespace) -> int:
    for key in arguments.ids:
        desk.output.done(f"key/{key}", "revoked", desk.client.ask("DELETE", path("api-keys", key)).body)
    return Exit.OK


def _block(desk: Desk, arguments: argparse.Namespace) -> int:
    until = datetime.now(UTC) + timedelta(seconds=_seconds(arguments.length))
    for host in arguments.hosts:
        body = {"until": until.isoformat(timespec="seconds")}
        answer = desk.client.ask("PUT", path("hosts", host, "block"), body=body).body
        desk.output.done(f"host/{host}", f"is to be left alone until {until:%Y-%m-%d %H:%M:%S} UTC", answer)
    return Exit.OK


def _unblock(desk: Desk, arguments: argparse.Namespace) -> int:
    for host in arguments.hosts:
        answer = desk.client.ask("DELETE", path("hosts", host, "block")).body
        desk.output.done(f"host/{host}", "is to be asked again", answer)
    return Exit.OK


_NO_DELAY: Final = "has no delay of an operator any more: those of its crawls and of its robots.txt hold"


def _delay(desk: Desk, arguments: argparse.Namespace) -> int:
    seconds = _seconds(arguments.seconds)
    answer = desk.client.ask("PUT", path("hosts", arguments.host, "delay"), body={"delay_s": seconds}).body
    said = f"is to be asked at most every {seconds:g} s" if seconds else _NO_DELAY
    desk.output.done(f"host/{arguments.host}", said, answer)
    return Exit.OK


def _letters(desk: Desk, arguments: argparse.Namespace) -> int:
    """Replay or discard: those that are named, or all of a crawl."""
    if (arguments.crawl is None) == (not arguments.ids):
        raise Usage("name the dead letters, or give --crawl for all of a crawl.")
    method, behind, done = _LETTERS[arguments.turn]
    for letter in arguments.ids or [None]:
        at = path("dead-letters", *([] if letter is None else [letter]), *behind)
        answer = desk.client.ask(method, at, query={"crawl": arguments.crawl}).body
        name = f"crawl/{arguments.crawl}" if letter is None else f"dead-letter/{letter}"
        desk.output.done(name, done if letter is not None else f"dead letters: {done}", answer)
        desk.asked(answer)
    return Exit.OK


_LETTERS: Final[Mapping[str, tuple[str, tuple[str, ...], str]]] = {
    "replay": ("POST", ("replay",), "to be tried again"),
    "discard": ("DELETE", (), "to be discarded"),
}


# --- the hot configuration --------------------------------------------------------------------------------------------


def _get_config(desk: Desk, arguments: argparse.Namespace) -> int:
    found = desk.client.get(_CONFIG).body
    if desk.output.for_people:
        desk.output.say(remarked(found["config"]))
        desk.note(f"revision {found['revision']}; what is null was not turned, and is as the remark says")
    else:
        desk.output.document(found)
    return Exit.OK


def remarked(config: Mapping[str, Any]) -> str:
    """The configuration as YAML, and behind what is null what holds instead, as this release has it."""
    defaults, lines, section = _defaults(), [], ""
    for line in as_yaml(config).rstrip().splitlines():
        name = line.partition(":")[0]
        section = section if name.startswith(" ") else name
        if line.endswith(": null"):
            holds = "as of all workers" if section == "pools" else defaults.get((section, name.strip()))
            line += "" if holds is None else f"  # {holds}"
        lines.append(line)
    return "\n".join(lines)


def _defaults() -> Mapping[tuple[str, str], str]:
    """By section and name; that of a value without a section is its own name."""
    from shared.domain.config import MasterTuning  # read where they are shown: every command would wait for them
    from shared.settings import ClusterWorkerSettings

    tuning = MasterTuning()
    worker = {field.name: field.default for field in msgspec.structs.fields(ClusterWorkerSettings)}
    started = {
        ("log_level", "log_level"): tuning.log_level,
        ("worker", "visits"): worker["visits"],
        ("worker", "report_s"): worker["report_s"],
        ("master", "grant_s"): tuning.grant_s,
    }
    turned = {("master", name): value for name, value in asdict(tuning).items() if not isinstance(value, dict)}
    turned |= {("retention", name): value for name, value in asdict(tuning.retention).items()}
    turned |= {
        ("storage", "high"): tuning.storage.high,
        ("storage", "low"): tuning.storage.low,
        ("storage", "headroom_bytes"): tuning.storage.headroom,
    }
    remarks = {place: f"{value} by default" for place, value in turned.items()} | {
        place: f"as each was started; {value} by default" for place, value in started.items()
    }
    remarks["storage", "low"] += ", at most high"
    return remarks


def _put_config(desk: Desk, arguments: argparse.Namespace) -> int:
    text = sys.stdin.read() if arguments.file == "-" else text_of(Path(arguments.file), "configuration")
    wanted = document(text, arguments.file)
    if not isinstance(wanted, dict):
        raise Usage(f"{arguments.file} is no configuration; `orb ctl config get` shows one.")
    if "config" in wanted and "revision" in wanted:  # as `config get -o yaml` shows it
        wanted = wanted["config"]
    _configured(desk, lambda found: wanted, once=True)
    return Exit.OK


def _set_config(desk: Desk, arguments: argparse.Namespace) -> int:
    changes = [_change(each) for each in arguments.values]
    _configured(desk, lambda found: with_values(found, changes), once=False)
    return Exit.OK


def _configured(desk: Desk, wanted: Callable[[Mapping[str, Any]], Mapping[str, Any]], *, once: bool) -> None:
    """Replace the configuration that was read by what `wanted` makes of it; with `once` not where it has changed."""
    for left in reversed(range(1 if once else _AGAIN)):
        seen = desk.client.get(_CONFIG)
        headers = {} if seen.etag is None else {"If-Match": seen.etag}
        body = wanted(seen.body["config"])
        try:
            answer = desk.client.ask("PUT", _CONFIG, body=body, headers=headers)
        except Refusal as refusal:
            if refusal.problem.status == 412 and left:
                continue
            raise
        done = "unchanged" if answer.body["revision"] == seen.body["revision"] else "configured"
        desk.output.done(f"config/{answer.body['revision']}", done, answer.body)
        return


def _change(text: str) -> tuple[list[str], Any]:
    name, equals, value = text.partition("=")
    if not equals or not all(name.split(".")):
        raise Usage(f"{text!r} is not of the form worker.visits=64.")
    return name.split("."), document(value, text)


def with_values(config: Mapping[str, Any], changes: Iterable[tuple[Sequence[str], Any]]) -> dict[str, Any]:
    """The configuration with these values at these paths."""
    made = dict(config)
    for (first, *rest), value in changes:
        inner = made.get(first)
        made[first] = with_values(inner if isinstance(inner, dict) else {}, [(rest, value)]) if rest else value
    return made


def _seconds(text: str) -> float:
    seconds = seconds_of(text)
    if seconds is None:
        raise Usage(f"{text!r} is no length of time; write it as 90s, 15m, 2h30m or 7d.")
    return seconds
