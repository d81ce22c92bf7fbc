"""Copies the limits that a host's policy sets to the row of the host, from which the owner of the host loads them.

The command of a policy names only its host, and the owner applies the policy that `host_policies` has at that time. So
commands that come late, twice or in another order never restore an earlier policy.
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
    """Copy the delay, block and slots of the host's policy to its row in `hosts`. Set them to 0 if it has no policy.

    Do nothing if the partition has no such host. `host`: its name.
    """
    connection.execute(_ONE, {"host": host, "partition": partition})


def apply_to_new(connection: Connection, partition: Partition, names: Sequence[str]) -> None:
    """Copy the limits of host policies to the hosts `names`, which this transaction has just inserted."""
    query = _WITH_POLICY[connection.dialect.name]
    for start in range(0, len(names), _NAMES_A_QUERY):
        some = names[start : start + _NAMES_A_QUERY]
        for host in connection.execute(query, {"names": some}).scalars().all():
            apply_policy(connection, partition, host)
