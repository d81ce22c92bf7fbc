"""Verbs of `orb ctl` for keys, hosts, dead letters and the hot configuration."""

import argparse
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

import msgspec

from cli.ctl.cells import moment
from cli.ctl.client import path
from cli.ctl.output import as_yaml
from cli.ctl.problems import Refusal
from cli.ctl.verb_context import VerbContext, Verbs
from cli.local.spec_flags import seconds_of
from cli.terminal.exits import Environment, Exit, Failed, Usage
from cli.terminal.yaml_input import document, text_of

_CONFIG: Final = path("config")
_AGAIN: Final = 5


def declare(verbs: Verbs) -> None:
    """Add the verbs for keys, hosts, dead letters and the hot configuration to `orb ctl`."""
    keys = verbs.family("keys", "create and revoke API keys (`get keys` lists them)")
    create = keys.add("create", "create a key, which is shown only once", _create_key)
    create.add_argument("name", metavar="NAME", help="name of the key")
    create.add_argument("--role", choices=("viewer", "operator", "admin"), required=True)
    create.add_argument("--expires", metavar="TIME", help="end it then: 2030-06-01, 2030-06-01T12:00:00Z, or 90d")
    create.add_argument(
        "--network", dest="networks", action="append", default=[], metavar="CIDR",
        help="accept it from this network alone; repeatable",
    )  # fmt: skip
    create.add_argument(
        "--certificate", metavar="NAME",
        help="accept it with this client certificate alone: sha256:FINGERPRINT, dns:NAME, uri:NAME or email:NAME",
    )  # fmt: skip
    revoke = keys.add("revoke", "revoke keys", _revoke_keys)
    revoke.add_argument("names", nargs="+", metavar="NAME")

    hosts = verbs.family("hosts", "change the policies of hosts (`get host-policies` lists them)")
    block = hosts.add("block", "send no requests to a host, for a time or until it is unblocked", _block)
    block.add_argument("hosts", nargs="+", metavar="HOST")
    block.add_argument("--reason", required=True, metavar="TEXT", help="why the host is blocked")
    block.add_argument("--for", dest="length", metavar="TIME", help="end it after this time: 90s, 15m, 2h30m, 7d")
    unblock = hosts.add("unblock", "end the block of a host, including one after its own 429 or 503", _unblock)
    unblock.add_argument("hosts", nargs="+", metavar="HOST")
    delay = hosts.add("delay", "set the least delay between two requests to a host; 0 removes it", _delay)
    delay.add_argument("host", metavar="HOST")
    delay.add_argument("seconds", metavar="S")
    slots = hosts.add("slots", "set the most URL shards of a host at a time; 0 removes the limit", _slots)
    slots.add_argument("host", metavar="HOST")
    slots.add_argument("number", type=int, metavar="N")

    exclude = verbs.add("exclude", "let no crawl request a host, a URL prefix or an address range", _exclude)
    exclude.add_argument(
        "targets", nargs="+", metavar="TARGET", help="example.org, https://example.org/a/, 192.0.2.0/24"
    )
    exclude.add_argument("--reason", required=True, metavar="TEXT", help="why nothing of it is crawled")
    exclude.add_argument("--requested-by", default="", metavar="WHO", help="who asked for it")
    exclude.add_argument("--for", dest="length", metavar="TIME", help="end it after this time: 90s, 15m, 2h30m, 7d")
    exclude.add_argument(
        "--withdraw", action="store_true", help="also withdraw its stored pages and items from listings and exports"
    )

    letters = verbs.family("dead-letters", "replay and discard dead letters (`get dead-letters` lists them)")
    for turn, summary in (("replay", "try them again, with new attempts"), ("discard", "delete them")):
        parser = letters.add(turn, summary, _letters, turn=turn)
        parser.add_argument("ids", nargs="*", metavar="ID")
        parser.add_argument("-c", "--crawl", metavar="CRAWL", help="all dead letters of this crawl")

    config = verbs.family("config", "show and change the hot configuration (`get config-revisions` lists earlier ones)")
    config.add("get", "show the configuration (`get config NAME` shows one value with its limits)", _get_config)
    put = config.add("put", "replace the whole configuration; fail if it changed meanwhile", _put_config)
    put.add_argument("-f", "--file", metavar="FILE", required=True, help="YAML or JSON; - for standard input")
    change = config.add(
        "set", "change single settings; null restores the value that members were started with", _set_config
    )
    change.add_argument("values", nargs="+", metavar="NAME=VALUE", help="as worker.max_visits=512")
    unset = config.add("unset", "restore the values that members were started with", _unset_config)
    unset.add_argument("names", nargs="+", metavar="NAME", help="as worker.max_visits")


def _create_key(desk: VerbContext, arguments: argparse.Namespace) -> int:
    desk.check_shows_secrets()
    bounds = {
        "expires_at": None if arguments.expires is None else _end_of_key(arguments.expires),
        "networks": arguments.networks,
        "certificate": arguments.certificate,
    }
    given = {name: value for name, value in bounds.items() if value}
    body = {"name": arguments.name, "role": arguments.role, **given}
    try:
        made = desk.client.ask("POST", path("api-keys"), body=body, repeatable=False).body
    except Failed as error:
        raise Failed(f"{error} {_lost_secret(arguments.name)}") from error
    except Refusal as refusal:
        if not refusal.unsure:
            raise
        raise Environment(f"{refusal}. {_lost_secret(arguments.name)}") from refusal
    if not desk.output.for_people:
        desk.output.done(f"key/{made['name']}", "created", made)
    desk.issued(made)
    return Exit.OK


def _lost_secret(name: str) -> str:
    """Return advice for a user whose request for a new key got no usable answer.

    The key may exist. Only the answer had its secret.
    """
    return (
        f"If `orb ctl get key {name}` shows the new key, its secret is lost: run `orb ctl keys revoke {name}` and "
        "create the key again."
    )


def _end_of_key(text: str) -> str:
    """Return the time at which a key ends, in ISO 8601.

    `text` is a time (UTC if it has no zone), or a duration that is added to the current time. Raise Usage if it is
    neither.
    """
    if seconds_of(text) is not None:
        end: datetime | None = _ends_at(text, "--expires", "a key has no end")
    else:
        end = moment(text)
    if end is None:
        raise Usage(f"--expires {text!r} is no time or duration: expected a form like 2030-06-01 or 90d.")
    return end.isoformat(timespec="seconds")


def _revoke_keys(desk: VerbContext, arguments: argparse.Namespace) -> int:
    for name in arguments.names:
        desk.output.done(f"key/{name}", "revoked", desk.client.ask("DELETE", path("api-keys", name)).body)
    return Exit.OK


_POLICY: Final = ("delay_s", "block", "slots")
"""The fields of a host's policy that a client can set. The API's answers have further fields."""


def _block(desk: VerbContext, arguments: argparse.Namespace) -> int:
    block, done = {"reason": arguments.reason}, "is blocked until it is unblocked"
    if arguments.length is not None:
        until = _ends_at(arguments.length, "--for", "a block never ends")
        block["until"] = until.isoformat(timespec="seconds")
        done = f"is blocked until {until:%Y-%m-%d %H:%M:%S} UTC"
    for host in arguments.hosts:
        answer = _declare_policy(desk, host, {"block": block})
        desk.output.done(f"host/{host}", done, answer)
        desk.asked(answer)
    return Exit.OK


def _unblock(desk: VerbContext, arguments: argparse.Namespace) -> int:
    for host in arguments.hosts:
        _declare_policy(desk, host, {"block": None})
        answer = desk.client.ask("POST", path("hosts", host, "unblock")).body
        desk.output.done(f"host/{host}", "is unblocked", answer)
        desk.asked(answer)
    return Exit.OK


_NO_DELAY: Final = "has no operator's delay any more: the delays of its crawls and its robots.txt apply"


def _delay(desk: VerbContext, arguments: argparse.Namespace) -> int:
    seconds = _seconds(arguments.seconds)
    answer = _declare_policy(desk, arguments.host, {"delay_s": seconds or None})
    done = f"gets a request at most every {seconds:g} s" if seconds else _NO_DELAY
    desk.output.done(f"host/{arguments.host}", done, answer)
    desk.asked(answer)
    return Exit.OK


def _slots(desk: VerbContext, arguments: argparse.Namespace) -> int:
    number = arguments.number
    answer = _declare_policy(desk, arguments.host, {"slots": number or None})
    done = f"has at most {number} of its URL shards out at a time" if number else "has no limit of slots any more"
    desk.output.done(f"host/{arguments.host}", done, answer)
    desk.asked(answer)
    return Exit.OK


def _declare_policy(desk: VerbContext, host: str, change: Mapping[str, Any]) -> Mapping[str, Any]:
    """Set the fields in `change` in a host's policy, and keep the policy's other fields. Return the master's answer.

    A value None removes a field. The policy is deleted if no field is left. If another client creates, changes or
    deletes the policy meanwhile, read it again and retry, a few times.

    Return an empty mapping if the host had no policy and `change` sets no field.
    """
    at = path("host-policies", host)
    for left in reversed(range(_AGAIN)):
        try:
            seen = desk.client.get(at)
        except Refusal as refusal:
            if refusal.problem.status != 404:
                raise
            seen = None
        before: dict[str, Any] = {}
        headers = {"If-None-Match": "*"}
        if seen is not None:
            before = {name: seen.body[name] for name in _POLICY}
            headers = {} if seen.etag is None else {"If-Match": seen.etag}
        wanted = {name: value for name, value in {**before, **change}.items() if value is not None}
        if seen is None and not wanted:
            return {}
        try:
            answer = desk.client.ask("PUT" if wanted else "DELETE", at, body=wanted or None, headers=headers)
        except Refusal as refusal:
            if refusal.problem.status in (404, 412) and left:
                continue
            raise
        return answer.body or {}
    raise AssertionError("the last attempt returns or raises")


def _ends_at(length: str, option: str, otherwise: str) -> datetime:
    """Return the current time plus `length`, a duration such as 2h30m.

    Raise Usage if `length` is not a duration, or is too long. The message of the error contains two parameters:

    - `option`: the option that the user gave, such as `--for`.
    - `otherwise`: what happens without the option, such as `a block never ends`.
    """
    try:
        return datetime.now(UTC) + timedelta(seconds=_seconds(length))
    except OverflowError:
        raise Usage(f"{option} {length} is too long. Without {option} {otherwise}.") from None


def _exclude(desk: VerbContext, arguments: argparse.Namespace) -> int:
    """Create an exclusion for each target, and return the exit code.

    If a target has an exclusion already, replace all its fields, such as the reason and the end.
    """
    terms: dict[str, Any] = {
        "reason": arguments.reason,
        "requested_by": arguments.requested_by,
        "withdraw": arguments.withdraw,
    }
    if arguments.length is not None:
        until = _ends_at(arguments.length, "--for", "an exclusion never ends")
        terms["until"] = until.isoformat(timespec="seconds")
    for target in arguments.targets:
        try:
            made, done = desk.client.ask("POST", path("exclusions"), body={"target": target, **terms}).body, "created"
        except Refusal as refusal:
            if refusal.problem.status != 409:
                raise
            known = desk.client.get(f"{path('exclusions')}?{urlencode({'target': target})}").body["items"]
            if not known:  # the limit is reached
                raise
            made = desk.client.ask("PUT", path("exclusions", str(known[0]["id"])), body=terms).body
            done = "replaced"
        desk.output.done(f"exclusion/{made['id']}", f"{done}: no crawl requests {made['target']}", made)
        desk.asked(made)
    return Exit.OK


def _letters(desk: VerbContext, arguments: argparse.Namespace) -> int:
    """Replay or discard the dead letters with the given ids, or all dead letters of a crawl."""
    if (arguments.crawl is None) == (not arguments.ids):
        raise Usage("no dead letters given: name their ids, or set --crawl.")
    method, behind, done = _LETTERS[arguments.turn]
    for letter in arguments.ids or [None]:
        at = path("dead-letters", *([] if letter is None else [letter]), *behind)
        answer = desk.client.ask(method, at, query={"crawl": arguments.crawl}).body
        name = f"crawl/{arguments.crawl}" if letter is None else f"dead-letter/{letter}"
        desk.output.done(name, done if letter is not None else f"dead letters: {done}", answer)
        desk.asked(answer)
    return Exit.OK


_LETTERS: Final[Mapping[str, tuple[str, tuple[str, ...], str]]] = {
    "replay": ("POST", ("replay",), "to be retried"),
    "discard": ("DELETE", (), "to be discarded"),
}


# --- the hot configuration --------------------------------------------------------------------------------------------


def _get_config(desk: VerbContext, arguments: argparse.Namespace) -> int:
    answer = desk.client.get(_CONFIG).body
    if desk.output.for_people:
        desk.output.say(remarked(answer["config"]))
        desk.note(f"revision {answer['revision']}; null is not set: its comment shows the value in effect")
    else:
        desk.output.document(answer)
    return Exit.OK


def remarked(config: Mapping[str, Any]) -> str:
    """Return the hot configuration as YAML. A setting that is not set has the value null.

    A comment after the null says which value applies, such as the default of this release of `orb`.
    """
    defaults, lines, section = _defaults(), [], ""
    for line in as_yaml(config).rstrip().splitlines():
        name = line.partition(":")[0]
        section = section if name.startswith(" ") else name
        if line.endswith(": null"):
            holds = "as for all workers" if section == "pools" else defaults.get((section, name.strip()))
            line += "" if holds is None else f"  # {holds}"
        lines.append(line)
    return "\n".join(lines)


def _defaults() -> Mapping[tuple[str, str], str]:
    """Return the YAML comments that state the defaults of settings. A setting without a default has no comment.

    The key is (section, name), or (name, name) for a setting outside of the sections, such as `log_level`.
    """
    from shared.domain.ops.config import MasterTuning  # imported only here: it would slow down every command
    from shared.settings import ClusterWorkerSettings

    tuning = MasterTuning()
    worker = {field.name: field.default for field in msgspec.structs.fields(ClusterWorkerSettings)}
    started = {
        ("log_level", "log_level"): tuning.log_level,
        ("worker", "max_visits"): worker["max_visits"],
        ("worker", "report_s"): worker["report_s"],
        ("master", "grant_s"): tuning.grant_s,
    }
    tuned = {
        ("master", name): value for name, value in msgspec.to_builtins(tuning).items() if not isinstance(value, dict)
    }
    tuned |= {("retention", name): value for name, value in msgspec.structs.asdict(tuning.retention).items()}
    tuned |= {
        ("storage", "high_watermark_ratio"): tuning.storage.high,
        ("storage", "low_watermark_ratio"): tuning.storage.low,
        ("storage", "headroom_bytes"): tuning.storage.headroom,
    }
    remarks = {place: f"{value} by default" for place, value in tuned.items()} | {
        place: f"as each was started; {value} by default" for place, value in started.items()
    }
    remarks["storage", "low_watermark_ratio"] += ", at most high_watermark_ratio"
    return remarks


def _put_config(desk: VerbContext, arguments: argparse.Namespace) -> int:
    text = sys.stdin.read() if arguments.file == "-" else text_of(Path(arguments.file), "configuration")
    data = document(text, arguments.file)
    if not isinstance(data, dict):
        raise Usage(f"{arguments.file} is not a configuration; `orb ctl config get` prints one.")
    if "config" in data and "revision" in data:  # as `config get -o yaml` shows it
        data = data["config"]
    _configured(desk, lambda config: data, once=True)
    return Exit.OK


def _set_config(desk: VerbContext, arguments: argparse.Namespace) -> int:
    changes: dict[tuple[str, ...], Any] = {}
    for each in arguments.values:
        names, value = _change(each)
        if changes.setdefault(names, value) != value:
            raise Usage(f"{each}: the setting {'.'.join(names)} is given two values.")
    _configured(desk, lambda config: with_values(config, changes.items()), once=False)
    return Exit.OK


def _unset_config(desk: VerbContext, arguments: argparse.Namespace) -> int:
    for name in arguments.names:
        desk.output.done(f"config/{name}", "unset", desk.client.ask("DELETE", path("config", name)).body)
    return Exit.OK


def _configured(desk: VerbContext, change: Callable[[Mapping[str, Any]], Mapping[str, Any]], *, once: bool) -> None:
    """Replace the hot configuration by `change(current)`, and print the result.

    If another client changes the configuration meanwhile, compute and send the change again, a few times. With `once`,
    raise Refusal in this case.
    """
    for left in reversed(range(1 if once else _AGAIN)):
        seen = desk.client.get(_CONFIG)
        headers = {} if seen.etag is None else {"If-Match": seen.etag}
        body = change(seen.body["config"])
        try:
            answer = desk.client.ask("PUT", _CONFIG, body=body, headers=headers)
        except Refusal as refusal:
            if refusal.problem.status == 412 and left:
                continue
            raise
        done = "unchanged" if answer.body["revision"] == seen.body["revision"] else "configured"
        desk.output.done(f"config/{answer.body['revision']}", done, answer.body)
        return


def _change(text: str) -> tuple[tuple[str, ...], Any]:
    name, equals, value = text.partition("=")
    if not equals or not all(name.split(".")):
        raise Usage(f"{text!r} is not a setting: expected a form like worker.max_visits=512.")
    return tuple(name.split(".")), document(value, text)


def with_values(config: Mapping[str, Any], changes: Iterable[tuple[Sequence[str], Any]]) -> dict[str, Any]:
    """Return a copy of the configuration in which each path of `changes` has its value.

    A path is a list of names, such as `["worker", "max_visits"]`. Missing sections on the path are created.
    """
    made = dict(config)
    for (first, *rest), value in changes:
        inner = made.get(first)
        made[first] = with_values(inner if isinstance(inner, dict) else {}, [(rest, value)]) if rest else value
    return made


def _seconds(text: str) -> float:
    seconds = seconds_of(text)
    if seconds is None:
        raise Usage(f"{text!r} is not a duration: expected a form like 90s, 15m, 2h30m or 7d.")
    return seconds
