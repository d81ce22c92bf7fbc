"""The catalog on SQL: declared crawls, keys, the audit log and reads of the frontier.

Each method is one transaction of another module of this package.
"""

from sqlalchemy import Connection, text

from shared.adapters.sql.catalog import access, declared, excluded_examples, listing, scope_plan
from shared.adapters.sql.catalog import captures as stored_captures
from shared.adapters.sql.catalog import changes as page_changes
from shared.adapters.sql.catalog import items as stored_items
from shared.adapters.sql.catalog import keys as identities
from shared.adapters.sql.catalog import pages as stored_pages
from shared.adapters.sql.catalog import seeds as stored_seeds
from shared.adapters.sql.engine.executor import SqlAdapter, read, write
from shared.adapters.sql.frontier import commands
from shared.domain.ops.access import ApiKey
from shared.domain.reads.declared import DeclaredCrawl, Stamp


def _ping(connection: Connection) -> None:
    connection.execute(text("SELECT 1")).scalar()


class SqlCatalog(SqlAdapter):
    """Declared crawls, API keys, the audit log, and reads of the frontier, on SQL (`shared.ports.catalog.Catalog`)."""

    create = write(declared.create)
    put = write(declared.put)
    turn = write(declared.turn)
    crawls = read(declared.listing)
    revisions = read(declared.revisions)
    revision = read(declared.revision)

    async def crawl(self, name: str) -> DeclaredCrawl:
        return declared.named(await self._run.glance(declared.BY_NAME, wanted_name=name), name)

    async def stamp(self, name: str) -> Stamp:
        return declared.stamped(await self._run.glance(declared.STAMP, wanted_name=name), name)

    async def key(self, key_id: str) -> ApiKey | None:
        return identities.with_id(await self._run.glance(identities.BY_ID, wanted_id=key_id))

    scope_change = read(scope_plan.scope_change)
    left_out = read(excluded_examples.examples)
    stats = read(listing.stats)
    urls = read(listing.urls)
    url = read(listing.url)
    pages = read(stored_pages.pages)
    page = read(stored_pages.page)
    changes = read(page_changes.changes)
    changes_deleted_ms = read(page_changes.changes_deleted_ms)
    versions = read(page_changes.versions)
    captures = read(stored_captures.captures)
    items = read(stored_items.listing)
    item = read(stored_items.one)
    seeds = read(stored_seeds.seeds)
    known_seeds = read(stored_seeds.known)
    host = read(listing.host)
    hosts = read(listing.hosts)
    host_queues = read(listing.host_queues)
    dead_letters = read(listing.dead_letters)
    dead_letter = read(listing.dead_letter)
    ask = write(access.ask)
    command = read(access.command)
    partitions_with_commands = read(commands.by_kind)
    add_key = write(identities.add_key)
    add_first_key = write(identities.add_first_key)
    put_key = write(identities.put_key)
    revoke_key = write(identities.revoke_key)
    key_named = read(identities.key_named)
    keys = read(identities.keys)
    key_of_certificate = read(identities.key_of_certificate)
    note_uses = write(identities.note_uses)
    secret = write(identities.secret)
    ping = read(_ping)
