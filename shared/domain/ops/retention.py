"""Retention: how long growing data is kept, by kind. No I/O.

Data that is still in use is never deleted. A command is kept while the leader publishes it or an owner applies it, and
a deleted crawl until its rows are removed. The active revision of a spec or configuration is kept, and so is a host
with a delay that an operator has set. Revoked keys are kept if no other key exists.
"""

import re
from enum import StrEnum
from typing import Final

from msgspec import Struct

_WEEKLY: Final = re.compile(r"\.k(\d{1,9})$")
_ONCE: Final = ("seeds-", "letter-", "rediscover-")
DAY_MS: Final = 24 * 3600 * 1000


class RetainedKind(StrEnum):
    """The kinds of data that grow with use, each kept for a time of its own.

    * AUDIT: lines of the audit log.
    * COMMANDS: commands that operators requested, such as a retry, and which partitions have applied each command.
    * REVISIONS: earlier specs of crawls. Also the records of commands that the leader itself sent for these specs.
    * CONFIG: earlier hot configurations.
    * CRAWLS: names, specs and times of deleted crawls.
    * LETTERS: dead letters that belong to no crawl; those of crawls wait for an operator.
    * PRODUCERS: for each sender of discoveries, the number of its last message that was applied.
    * UPLOADS: the same number, for senders that are used only once (`is_upload`).
    * KEYS: revoked keys.
    * HOSTS: hosts without any row of a crawl.
    * CHANGES: the log of new, changed and gone pages.
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
    CHANGES = "changes"


class Retention(Struct, frozen=True):
    """How long each kind of data is kept, in days.

    `revisions` is a count instead: the revisions of each crawl's spec, and of the hot configuration, that are kept.
    """

    audit_days: int = 365
    commands_days: int = 30
    revisions: int = 100
    deleted_crawls_days: int = 30
    dead_letters_days: int = 90
    producers_days: int = 60
    uploads_days: int = 30
    revoked_keys_days: int = 365
    hosts_days: int = 90
    changes_days: int = 365

    def before_ms(self, what: RetainedKind, now_ms: int) -> int:
        """Return the time (Unix ms) before which data of this kind may be deleted.

        Raise KeyError for REVISIONS and CONFIG, which are kept by number.
        """
        days = {
            RetainedKind.AUDIT: self.audit_days,
            RetainedKind.COMMANDS: self.commands_days,
            RetainedKind.CRAWLS: self.deleted_crawls_days,
            RetainedKind.LETTERS: self.dead_letters_days,
            RetainedKind.PRODUCERS: self.producers_days,
            RetainedKind.UPLOADS: self.uploads_days,
            RetainedKind.KEYS: self.revoked_keys_days,
            RetainedKind.HOSTS: self.hosts_days,
            RetainedKind.CHANGES: self.changes_days,
        }
        return now_ms - days[what] * DAY_MS


def named_for(producer: str, week: int) -> str:
    """Return the producer name that a process uses for its discoveries during `week` (`week_of`).

    `producer` is the unique name of the process. The result ends in `.k` and the number of the week.
    """
    return f"{producer}.k{week}"


def week_of(now_ms: int) -> int:
    """Return the number of whole weeks from 1970 to `now_ms` (Unix ms)."""
    return now_ms // (7 * DAY_MS)


def used_until_ms(name: str) -> int | None:
    """Return the time (Unix ms) after which the producer name `name` is not used: the end of the week in the name.

    Return None if `name` has no week, because `named_for` did not make it.
    """
    match = _WEEKLY.search(name)
    return None if match is None else (int(match[1]) + 1) * 7 * DAY_MS


def is_upload(name: str) -> bool:
    """Return True if the producer name `name` was made for one task. After the task, the name is never used again.

    A producer name is the name under which discoveries are sent. There are two types:

    - The name of one task: return True. The task is an upload of seeds, or one of three others: a change of a seed
      set, a replay or a rediscovery.
    - The name of a process in one week, under which the process sends all its discoveries: return False.
    """
    # The name of a process may begin like the name of a task, but always ends in a week.
    return name.startswith(_ONCE) and used_until_ms(name) is None


KEPT_BY_DEFAULT: Final = Retention()
