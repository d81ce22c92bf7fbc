"""How long what grows is kept, and what that means for each kind of it (pure).

Nothing is forgotten that somebody may still need to act on: a command before all its partitions have applied it, a
deleted crawl before its rows are collected, the revision of a spec or configuration that holds, a host's delay that an
operator set, the last key of all.
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

_WEEKLY: Final = re.compile(r"\.k(\d{1,9})$")
_ONCE: Final = ("seeds-", "letter-")
DAY_MS: Final = 24 * 3600 * 1000


class Kept(StrEnum):
    """What grows with use. AUDIT: lines of the audit log. COMMANDS: what was asked of the owners, and who has applied
    it. REVISIONS: earlier specs of crawls. CONFIG: earlier hot configurations. CRAWLS: names, specs and times of
    deleted crawls. LETTERS: dead letters that belong to no crawl; those of crawls wait for somebody. PRODUCERS: how far
    each numbering of discoveries was applied. UPLOADS: the same of uploads of seeds, whose names say no week. KEYS:
    those that were revoked. HOSTS: those that no crawl has anything of."""

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
    """Days, but for `revisions`: so many of each crawl's specs and of the hot configuration, the newest."""

    audit_days: int = 365
    commands_days: int = 30
    revisions: int = 100
    crawls_days: int = 30
    letters_days: int = 90
    producers_days: int = 60
    uploads_days: int = 30
    keys_days: int = 365
    hosts_days: int = 90

    def before_ms(self, what: Kept, now_ms: int) -> int:
        """What is older than this may go."""
        days = {
            Kept.AUDIT: self.audit_days,
            Kept.COMMANDS: self.commands_days,
            Kept.CRAWLS: self.crawls_days,
            Kept.LETTERS: self.letters_days,
            Kept.PRODUCERS: self.producers_days,
            Kept.UPLOADS: self.uploads_days,
            Kept.KEYS: self.keys_days,
            Kept.HOSTS: self.hosts_days,
        }
        return now_ms - days[what] * DAY_MS


def named_for(producer: str, week: int) -> str:
    """The name under which a process numbers discoveries for a week, and never again."""
    return f"{producer}.k{week}"


def week_of(now_ms: int) -> int:
    """Weeks since 1970."""
    return now_ms // (7 * DAY_MS)


def used_until_ms(name: str) -> int | None:
    """Until when something new may come under the name of a producer; None where it does not say."""
    found = _WEEKLY.search(name)
    return None if found is None else (int(found[1]) + 1) * 7 * DAY_MS


def is_upload(name: str) -> bool:
    """Whether a producer numbers one upload of seeds, or one replayed letter: it is used once, and for no longer."""
    return name.startswith(_ONCE) and used_until_ms(name) is None


KEPT_BY_DEFAULT: Final = Retention()
