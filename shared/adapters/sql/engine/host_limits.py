"""Copies what a host's policy sets to the row of the host, from which its owner loads it.

The command of a policy names only its host. Its owner applies what `host_policies` has then. So commands that come
late, twice or in another order never restore an earlier policy.
"""

from collections.abc import Sequence
from typing import Final

from sqlalchemy import Connection, bindparam, text

from shared.domain.ids import Partition

_NAMES_A_QUERY: Final = 500

_SET = ", ".join(
    f"operator_{column} = coalesce((SELECT p.{column} FROM host_policies p WHERE p.host = hosts.host), 0)"
    for column in ("delay_ms", "blocked_until_ms", "slots")
)
_ONE: Final = text(f"UPDATE hosts SET {_SET} WHERE host = :host AND partition = :partition")
_WITH_POLICY: Final = {
    "sqlite": text("SELECT host FROM host_policies WHERE host IN :names").bindparams(
        bindparam("names", expanding=True)
    ),
    "postgresql": text("SELECT host FROM host_policies WHERE host = ANY(:names)"),
}


def apply_policy(connection: Connection, partition: Partition, host: object) -> None:
    """Give the host what its policy sets now, or nothing if it has no policy. An unknown host is left alone."""
    connection.execute(_ONE, {"host": host, "partition": partition})


def apply_to_new(connection: Connection, partition: Partition, names: Sequence[str]) -> None:
    """Give hosts that were just inserted what their policies set."""
    query = _WITH_POLICY[connection.dialect.name]
    for start in range(0, len(names), _NAMES_A_QUERY):
        some = names[start : start + _NAMES_A_QUERY]
        for host in connection.execute(query, {"names": some}).scalars().all():
            apply_policy(connection, partition, host)
