"""Refuses databases and backups from before the first release."""

import re
from typing import Final

from shared.domain.errors import Unusable

_UNRELEASED: Final = re.compile("[0-9]{4}")
"""The migrations of development versions, before the first release. A name of four digits alone is such a migration."""


def refuse_unreleased(what: str, schema: str | None) -> None:
    """Raise Unusable if `schema`, the newest migration of a database or backup, is from before the first release.

    `what` names the database or backup in the message.
    """
    if schema is not None and _UNRELEASED.fullmatch(schema):
        raise Unusable(
            f"this {what} is from before the first release (schema {schema}), and no release can read it: use a new "
            "folder or database (`orb crawl --fresh` empties its folder), or the program that made it"
        )
