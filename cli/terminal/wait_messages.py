"""Sentences on why a crawl waits and how to change that, for progress lines, the live display and the summary."""

from collections.abc import Sequence

from cli.terminal.display_rates import clock, count
from shared.domain.explain.waits import HostWait, WaitReason, Waits, cause_of, remedy_of
from shared.domain.frontier.states import CrawlState
from shared.wire.messages import HostWaiting, Progress


def waits_of(progress: Progress) -> Waits:
    """Return the waiting hosts of a crawl, and how long each waits, from a progress update of the master."""
    hosts = tuple(map(_host, progress.waiting))
    return Waits(hosts, progress.hosts_waiting, progress.standing, progress.hosts_left_ms / 1000)


def sentences(waits: Waits, unblock: str) -> list[str]:
    """Return two sentences: why the crawl waits, and how to change that.

    Return an empty list if any host gets requests. `unblock` is the command that ends the waits of hosts. The second
    sentence shows the command if it can help.
    """
    if not waits.standing:
        return []
    wait = waits.hosts[0]
    others = waits.number - 1
    more = f"; {count(others)} other host{'' if others == 1 else 's'} wait{'s' if others == 1 else ''}, too"
    given_up = clock(wait.given_up_s) if wait.given_up_s >= 0 else ""
    return [cause_of(wait, clock(wait.wait_s)) + (more if others else ""), remedy_of(wait, unblock, given_up)]


def blocking(progress: Progress, unblock: str) -> list[str]:
    """Return sentences on what stops the crawl and how to change that. Return an empty list if nothing stops it.

    `unblock` is the command that ends the waits of hosts. The sentences show the command if it can help.
    """
    if alarms := [alarm for alarm in progress.alarms if alarm.startswith("nothing is sent out")]:
        return alarms[:1]
    if progress.state != CrawlState.RUNNING:
        return []
    lines = sentences(waits_of(progress), f"Ctrl-C, then {unblock}")
    return [f"waits {lines[0]}", *lines[1:]] if lines else []


def as_objects(waits: Waits, unblock: str) -> list[dict[str, object]]:
    """Return the waiting hosts in `waits.hosts` as JSON objects, each with the reason and the seconds of the wait.

    `unblock` is the command that ends the waits of hosts. The field `text` shows the command if it can help.
    """
    return [
        {
            "host": wait.host,
            "reason": wait.reason.value,
            "seconds": round(wait.wait_s, 1),
            "urls": wait.urls,
            "text": "; ".join(sentences(Waits((wait,), 1, standing=True), unblock)),
        }
        for wait in waits.hosts
    ]


def partly(waits: Waits) -> Sequence[str]:
    """Return a list with one text, such as `3 hosts wait`, if some of the hosts wait and others do not.

    Return an empty list if no host waits, or if all hosts with URLs wait.
    """
    if waits.standing or not waits.number:
        return []
    return [f"{count(waits.number)} host{' waits' if waits.number == 1 else 's wait'}"]


def _host(host: HostWaiting) -> HostWait:
    try:
        reason = WaitReason(host.reason)
    except ValueError:  # a reason of a later version
        reason = WaitReason.DELAY
    return HostWait(
        host.host,
        reason,
        host.wait_ms / 1000,
        host.urls,
        host.delay_ms / 1000,
        host.cause,
        host.given_up_ms / 1000 if host.given_up_ms >= 0 else -1.0,
        host.asked,
    )
