"""The cells of resources: what is told of a crawl, a URL, a member, in one word or number each. Pure."""

from collections.abc import Mapping
from typing import Any, Final

from cli.ctl.cells import NONE, Now, leaves, length, shown
from cli.ctl.tables import Cell
from cli.pace import amount, count

_STATES: Final = {
    "running": "green",
    "done": "green",
    "active": "green",
    "seeding": "cyan",
    "queued": "cyan",
    "leased": "cyan",
    "paused": "yellow",
    "waiting": "yellow",
    "draining": "yellow",
    "drained": "yellow",
    "failed": "red",
    "revoked": "red",
    "excluded": "dim",
    "finished": "dim",
}


def state_style(text: str) -> str:
    """The colour of a state."""
    return _STATES.get(text.partition(" ")[0], "")


def age(path: str) -> Cell:
    """How long ago the moment at `path` was."""
    return lambda row, now: now.since(_at(row, path))


def left(path: str) -> Cell:
    """How long it is till the moment at `path`."""
    return lambda row, now: now.until(_at(row, path))


def number(path: str) -> Cell:
    """A count, its thousands set off."""

    def cell(row: Any, now: Now) -> str:
        value = _at(row, path)
        return count(value) if isinstance(value, int) else shown(value)

    return cell


def size(path: str) -> Cell:
    """Bytes."""

    def cell(row: Any, now: Now) -> str:
        value = _at(row, path)
        return amount(value) if isinstance(value, int) else NONE

    return cell


def crawl_state(row: Any, now: Now) -> str:
    """`running`, `running (held)` for want of room, or `finished (complete)`."""
    state, reason = shown(row.get("state")), row.get("finished_reason") or ("held" if row.get("held") else None)
    return f"{state} ({shown(reason)})" if reason else state


def url_state(row: Any, now: Now) -> str:
    """`done`, or `excluded (robots)`."""
    state, reason = shown(row.get("state")), row.get("reason")
    return f"{state} ({shown(reason)})" if reason else state


def standing_of(member: Mapping[str, Any]) -> str:
    """Whether a member is active, drains or has drained."""
    return shown(member.get("state") or ("draining" if member.get("draining") else "active"))


def member_state(row: Any, now: Now) -> str:
    """How a member stands."""
    return standing_of(row)


def block_style(text: str) -> str:
    return "" if text == NONE else "yellow"


def key_state(row: Any, now: Now) -> str:
    return "revoked" if row.get("revoked_at") else "valid"


def owned(row: Any, now: Now) -> str:
    owners = row.get("partitions")
    if not isinstance(owners, Mapping):
        return NONE
    return f"{sum(owner is not None for owner in owners.values())}/{len(owners)}"


def settings(row: Any, now: Now) -> str:
    """`worker.visits=64 master.grant_s=30`; what is not set is left out."""
    return shown(" ".join(f"{name}={shown(value)}" for name, value in leaves(row.get("config") or {})))


def told(path: str) -> Cell:
    """The values of a JSON object, by their names; what has no value is left out."""
    return lambda row, now: shown(
        " ".join(f"{name}={shown(value)}" for name, value in leaves(_at(row, path) or {}) if value not in (None, []))
    )


def many(path: str) -> Cell:
    def cell(row: Any, now: Now) -> str:
        value = _at(row, path)
        return str(len(value)) if isinstance(value, list) else shown(value)

    return cell


def _at(row: Any, path: str) -> Any:
    for name in path.split("."):
        row = row.get(name) if isinstance(row, dict) else None
    return row


def duration(seconds: Any) -> str:
    """Seconds as a length of time."""
    return length(seconds) if isinstance(seconds, (int, float)) else NONE
