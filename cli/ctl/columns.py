"""The cells of `orb ctl` tables: facts about a crawl, a URL or a member, in one word or number each."""

from collections.abc import Mapping
from typing import Any, Final

from cli.ctl.cells import NONE, Now, leaves, length, moment, shown
from cli.ctl.tables import Cell
from cli.terminal.display_rates import amount, count

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
    "ended": "dim",
    "excluded": "dim",
    "finished": "dim",
}


def state_style(text: str) -> str:
    """Return the colour of a state cell such as `finished (complete)`, empty if the state has no colour."""
    return _STATES.get(text.partition(" ")[0], "")


def age(path: str) -> Cell:
    """Return a cell function for a time at `path` of a row. The cell shows how long ago that was, such as `3h20m`."""
    return lambda row, now: now.since(_at(row, path))


def left(path: str) -> Cell:
    """Return a cell function for a time at `path` of a row.

    The cell shows how much time is left until then, such as `3h20m`.
    """
    return lambda row, now: now.until(_at(row, path))


def number(path: str) -> Cell:
    """Return a cell function for a number at `path` of a row.

    The cell shows it with thousands separated, such as `1,204`.
    """

    def cell(row: Any, now: Now) -> str:
        value = _at(row, path)
        return count(value) if isinstance(value, int) else shown(value)

    return cell


def size(path: str) -> Cell:
    """Return a cell function for a number of bytes at `path` of a row.

    The cell shows it in a short form, such as `4.2 MB`.
    """

    def cell(row: Any, now: Now) -> str:
        value = _at(row, path)
        return amount(value) if isinstance(value, int) else NONE

    return cell


def crawl_state(row: Any, now: Now) -> str:
    """Return the table cell for a crawl's state, with a reason in parentheses if the state has one.

    Examples are `running`, `finished (complete)`, and `running (blocked)` if the crawl has a blocking reason.
    """
    state, reason = (
        shown(row.get("state")),
        row.get("finished_reason") or ("blocked" if row.get("blocking_reason") else None),
    )
    return f"{state} ({shown(reason)})" if reason else state


def url_state(row: Any, now: Now) -> str:
    """Return the table cell for a URL's state, with its reason if it has one: `done`, or `excluded (robots)`."""
    state, reason = shown(row.get("state")), row.get("reason")
    return f"{state} ({shown(reason)})" if reason else state


def status_of(member: Mapping[str, Any]) -> str:
    """Return a member's state: `active`, `draining` or `drained`. `member`: a master or worker as the API shows it."""
    return shown(member.get("state") or ("draining" if member.get("draining") else "active"))


def member_state(row: Any, now: Now) -> str:
    """Return the table cell for a member's state: `active`, `draining` or `drained`."""
    return status_of(row)


def block_style(text: str) -> str:
    return "" if text == NONE else "yellow"


def key_state(row: Any, now: Now) -> str:
    """Return the table cell for an API key's state: `valid`, `ended` after its time of expiry, or `revoked`."""
    if row.get("revoked_at"):
        return "revoked"
    end = moment(_at(row, "effective.expires_at"))
    return "valid" if end is None or now.at < end else "ended"


def exclusion_state(row: Any, now: Now) -> str:
    return "active" if row.get("active") else "ended"


def owned(row: Any, now: Now) -> str:
    owners = row.get("partitions")
    if not isinstance(owners, Mapping):
        return NONE
    return f"{sum(owner is not None for owner in owners.values())}/{len(owners)}"


def limits(row: Any, now: Now) -> str:
    """Return the table cell for a setting's allowed values, such as `1 to 100000`, `over 0, to 1` or `debug,info`."""
    if row.get("choices"):
        return shown(row["choices"])
    least, above, most = row.get("minimum"), row.get("exclusive_minimum"), row.get("maximum")
    low = f"{least:g}" if least is not None else "" if above is None else f"over {above:g},"
    return f"{low} to {most:.10g}".strip() if most is not None else low.rstrip(",") or shown(None)


def settings(row: Any, now: Now) -> str:
    """Return the table cell for a configuration: `worker.max_visits=512 master.grant_s=30`. Leave out null values."""
    return shown(" ".join(f"{name}={shown(value)}" for name, value in leaves(row.get("config") or {})))


def fields(path: str) -> Cell:
    """Return a cell function for an object at `path` of a row. The cell shows it as `name=value ...`.

    Nulls and empty lists are left out.
    """
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
    """Return a number of seconds as `3h20m`. Return a dash if the value is no number."""
    return length(seconds) if isinstance(seconds, (int, float)) else NONE
