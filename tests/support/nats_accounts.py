"""The accounts of NATS in deploy/nats/accounts.conf, and those that docs/cluster.md shows.

    .venv/bin/python -m tests.support.nats_accounts

writes both anew. They come from the table of `shared.adapters.nats.accounts`.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from shared.adapters.nats.accounts import NatsUser, accounts_of

ROOT: Final = Path(__file__).resolve().parents[2]
DEPLOYED: Final = ROOT / "deploy" / "nats" / "accounts.conf"
PAGE: Final = ROOT / "docs" / "cluster.md"

BY_CERTIFICATE: Final = (
    NatsUser("master-1"),
    NatsUser("master-2"),
    NatsUser("worker-1", "default", "worker-1"),
    NatsUser("worker-2", "default", "worker-2"),
)
"""The users of compose.yaml: names in their certificates."""

BY_PASSWORD: Final = (
    NatsUser("master", password="$MASTER_PASSWORD"),
    NatsUser("worker", "default", password="$WORKER_PASSWORD"),
)
"""The users that the documentation shows. NATS reads the passwords from variables."""

_HEAD: Final = """\
# What masters and workers may do: `.venv/bin/python -m tests.support.nats_accounts` writes this file.
# A user is the name in a client's certificate. A further worker needs a user here, and a further pool an account.
"""
_WIDTH: Final = 100
_VARIABLE: Final = re.compile(r'"(\$[A-Z]+_PASSWORD)"')
_SHOWN: Final = re.compile(r"(?<=<!-- accounts -->\n```\n).*?(?=```\n)", re.DOTALL)


def rendered(users: Sequence[NatsUser]) -> str:
    """The accounts of these users in the configuration language of NATS, of which JSON is a part."""
    return "accounts: " + _VARIABLE.sub(r"\1", _lines(accounts_of(users), 0)) + "\n"


def _lines(value: Any, depth: int) -> str:
    """JSON on one line if that is short enough, else with each entry on lines of its own."""
    line = json.dumps(value)
    if not isinstance(value, dict | list) or len(line) + 2 * depth <= _WIDTH:
        return line
    entries = value.items() if isinstance(value, dict) else [("", each) for each in value]
    begin, end = ("{", "}") if isinstance(value, dict) else ("[", "]")
    inner = ",\n".join(
        "  " * (depth + 1) + (f"{json.dumps(name)}: " if name else "") + _lines(each, depth + 1)
        for name, each in entries
    )
    return f"{begin}\n{inner}\n{'  ' * depth}{end}"


def deployed() -> str:
    """What deploy/nats/accounts.conf must be."""
    return _HEAD + rendered(BY_CERTIFICATE)


def page() -> str:
    """What docs/cluster.md must be."""
    text, count = _SHOWN.subn(lambda _: rendered(BY_PASSWORD), PAGE.read_text("utf-8"))
    assert count == 1, f"{PAGE} has no place for the accounts"
    return text


if __name__ == "__main__":
    DEPLOYED.write_text(deployed(), "utf-8")
    PAGE.write_text(page(), "utf-8")
