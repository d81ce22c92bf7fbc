"""docs/security.md has the table of rights as the code declares it.

    .venv/bin/python -m tests.support.rights_table

writes that table anew. Everything else on the page is written by hand.
"""

import re
from pathlib import Path
from typing import Final

from api.security.rights import RIGHTS
from shared.domain.ops.access import Role

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "security.md"
_HEADER: Final = "| Resource | Verb | Request | No key | viewer | operator | admin |\n|---|---|---|---|---|---|---|\n"
_TABLE: Final = re.compile(re.escape(_HEADER) + r"(\|.*\n)*")


def table() -> str:
    """Return the table of rights in Markdown, one line for each request."""
    lines = []
    for right in RIGHTS:
        cells = ["yes" if right.role is None else "", *("yes" if right.allows(role) else "" for role in Role)]
        lines.append(f"| {right.resource} | {right.verb} | `{right.method} {right.path}` | {' | '.join(cells)} |\n")
    return _HEADER + "".join(lines)


def page(text: str) -> str:
    """Return the text of the page with the table of today. Raise ValueError if it has no place for it."""
    made, count = _TABLE.subn(lambda _: table(), text)
    if count != 1:
        raise ValueError(f"{PAGE} has {count} tables of rights")
    return made


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text("utf-8")), "utf-8")
