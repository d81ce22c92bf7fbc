"""Why a crawl waits and how to change it, in words: the first thing that a progress line, display or summary says."""

from collections.abc import Sequence

from cli.pace import clock, count
from shared.domain.frontier import CrawlState
from shared.domain.waits import HostWait, WaitReason, Waits, cause_of, remedy_of
from shared.wire.messages import HostWaiting, Progress


def told_waits(progress: Progress) -> Waits:
    """Return the waits that a master told."""
    hosts = tuple(map(_host, progress.waiting))
    return Waits(hosts, progress.hosts_waiting, progress.standing, progress.hosts_left_ms / 1000)


def sentences(waits: Waits, unblock: str) -> list[str]:
    """Return why the crawl waits and what changes that; nothing while a host is asked. `unblock`: the command that
    lifts a wait."""
    if not waits.standing:
        return []
    wait = waits.hosts[0]
    others = waits.number - 1
    more = f"; {count(others)} other host{'' if others == 1 else 's'} wait{'s' if others == 1 else ''}, too"
    given_up = clock(wait.given_up_s) if wait.given_up_s >= 0 else ""
    return [cause_of(wait, clock(wait.wait_s)) + (more if others else ""), remedy_of(wait, unblock, given_up)]


def blocking(progress: Progress, unblock: str) -> list[str]:
    """Return what keeps the crawl from going on, and what changes that; nothing while it goes on."""
    if held := [alarm for alarm in progress.alarms if alarm.startswith("nothing is sent out")]:
        return held[:1]
    if progress.state != CrawlState.RUNNING:
        return []
    said = sentences(told_waits(progress), f"Ctrl-C, then {unblock}")
    return [f"waits {said[0]}", *said[1:]] if said else []


def as_objects(waits: Waits, unblock: str) -> list[dict[str, object]]:
    """Return the hosts that wait, for scripts."""
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
    """Return what to say of hosts that wait while others are asked."""
    if waits.standing or not waits.number:
        return []
    return [f"{count(waits.number)} host{' waits' if waits.number == 1 else 's wait'}"]


def _host(told: HostWaiting) -> HostWait:
    try:
        reason = WaitReason(told.reason)
    except ValueError:  # a later version's
        reason = WaitReason.DELAY
    return HostWait(
        told.host,
        reason,
        told.wait_ms / 1000,
        told.urls,
        told.delay_ms / 1000,
        told.cause,
        told.given_up_ms / 1000 if told.given_up_ms >= 0 else -1.0,
        told.asked,
    )
