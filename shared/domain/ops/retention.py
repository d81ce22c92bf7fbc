"""Retention: how long growing data is kept, by kind (pure).

Nothing is deleted that may still need an action. A command is kept until all its partitions have applied it, and a
deleted crawl until its rows are collected. The active revision of a spec or configuration is kept, as are a host's
delay that an operator set, and the last key.
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

_WEEKLY: Final = re.compile(r"\.k(\d{1,9})$")
_ONCE: Final = ("seeds-", "letter-")
DAY_MS: Final = 24 * 3600 * 1000


class RetainedKind(StrEnum):
    """Data that grows with use.

    * AUDIT: lines of the audit log.
    * COMMANDS: commands to the owners, and which partitions have applied them.
    * REVISIONS: earlier specs of crawls.
    * CONFIG: earlier hot configurations.
    * CRAWLS: names, specs and times of deleted crawls.
    * LETTERS: dead letters that belong to no crawl; those of crawls wait for an operator.
    * PRODUCERS: how far each numbering of discoveries was applied.
    * UPLOADS: the same of uploads of seeds, whose names contain no week.
    * KEYS: revoked keys.
    * HOSTS: hosts without any row of a crawl.
    """

    AUDIT = "audit"
    COMMANDS = "commands"
    REVISIONS = "revisions"
    CONFIG = "config"
    CRAWLS = "crawls"
    LETTERS = "letters"
    PRODUCERS = "producers"
    UPLOADS = "uploads"
    KEYS = "keys"
    HOSTS = "hosts"


@dataclass(frozen=True, slots=True)
class Retention:
    """Days, except `revisions`: the newest that many of each crawl's specs and of the hot configuration are kept."""

    audit_days: int = 365
    commands_days: int = 30
    revisions: int = 100
    deleted_crawls_days: int = 30
    dead_letters_days: int = 90
    producers_days: int = 60
    uploads_days: int = 30
    revoked_keys_days: int = 365
    hosts_days: int = 90

    def before_ms(self, what: RetainedKind, now_ms: int) -> int:
        """Return the time before which data of this kind may be deleted."""
        days = {
            RetainedKind.AUDIT: self.audit_days,
            RetainedKind.COMMANDS: self.commands_days,
            RetainedKind.CRAWLS: self.deleted_crawls_days,
            RetainedKind.LETTERS: self.dead_letters_days,
            RetainedKind.PRODUCERS: self.producers_days,
            RetainedKind.UPLOADS: self.uploads_days,
            RetainedKind.KEYS: self.revoked_keys_days,
            RetainedKind.HOSTS: self.hosts_days,
        }
        return now_ms - days[what] * DAY_MS


def named_for(producer: str, week: int) -> str:
    """Return the name under which a process numbers discoveries for one week only."""
    return f"{producer}.k{week}"


def week_of(now_ms: int) -> int:
    """Return the weeks since 1970."""
    return now_ms // (7 * DAY_MS)


def used_until_ms(name: str) -> int | None:
    """Return until when new messages may come under a producer's name, or None if the name does not show it."""
    match = _WEEKLY.search(name)
    return None if match is None else (int(match[1]) + 1) * 7 * DAY_MS


def is_upload(name: str) -> bool:
    """Return True if a producer numbers one upload of seeds, or one replayed letter.

    Its name is then used only once.
    """
    return name.startswith(_ONCE) and used_until_ms(name) is None


KEPT_BY_DEFAULT: Final = Retention()
