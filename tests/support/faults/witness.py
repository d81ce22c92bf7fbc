"""Triggers in the database that write down who wrote what, in the order in which it was committed: evidence that no
part of the product takes part in.

On PostgreSQL every owner's transaction leaves its fences (which partition, under which term, which member) and the
tables it wrote. SQLite has no sessions to tell apart: there it is the fences, and the terms of leases.
"""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final

import asyncpg

MEMBER: Final = "faults.member"
"""The setting of a session that names the member; it is part of the URL that the member is told."""

OWNED: Final = ("urls", "fetches", "queues", "leases", "crawl_counters")
"""Tables that nobody but a partition's owner may write."""

_TABLES: Final = """
CREATE TABLE faults_fences (
    n {number}, xid bigint NOT NULL, partition integer NOT NULL, term bigint NOT NULL, member text NOT NULL);
CREATE TABLE faults_leases (
    n {number}, partition integer NOT NULL, term bigint NOT NULL, owner_term bigint NOT NULL);
CREATE TABLE faults_writes (
    xid bigint NOT NULL, relation text NOT NULL, member text NOT NULL, PRIMARY KEY (xid, relation));
"""

_POSTGRES: Final = (
    _TABLES.format(number="bigserial PRIMARY KEY")
    + f"""
CREATE FUNCTION faults_fence() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO faults_fences (xid, partition, term, member)
        VALUES (txid_current(), NEW.partition, NEW.owner_term, coalesce(current_setting('{MEMBER}', true), ''));
    RETURN NULL; END $$;
CREATE FUNCTION faults_lease() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO faults_leases (partition, term, owner_term)
        SELECT NEW.partition, NEW.term, owner_term FROM partitions WHERE partition = NEW.partition;
    RETURN NULL; END $$;
CREATE FUNCTION faults_write() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO faults_writes VALUES (txid_current(), TG_TABLE_NAME, coalesce(current_setting('{MEMBER}', true), ''))
        ON CONFLICT DO NOTHING;
    RETURN NULL; END $$;
CREATE TRIGGER faults_fence AFTER UPDATE OF version ON partitions FOR EACH ROW EXECUTE FUNCTION faults_fence();
CREATE TRIGGER faults_lease AFTER INSERT ON leases FOR EACH ROW EXECUTE FUNCTION faults_lease();
"""
    + "".join(
        f"CREATE TRIGGER faults_write AFTER INSERT OR UPDATE OR DELETE ON {table}"
        " FOR EACH STATEMENT EXECUTE FUNCTION faults_write();\n"
        for table in OWNED
    )
)

_SQLITE: Final = (
    _TABLES.format(number="integer PRIMARY KEY AUTOINCREMENT")
    + """
CREATE TRIGGER faults_fence AFTER UPDATE OF version ON partitions BEGIN
    INSERT INTO faults_fences (xid, partition, term, member) VALUES (0, NEW.partition, NEW.owner_term, '');
END;
CREATE TRIGGER faults_lease AFTER INSERT ON leases BEGIN
    INSERT INTO faults_leases (partition, term, owner_term)
        SELECT NEW.partition, NEW.term, owner_term FROM partitions WHERE partition = NEW.partition;
END;
"""
)


async def watch(url: str) -> None:
    """Put the triggers into the migrated PostgreSQL database at `url`."""
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(_POSTGRES)
    finally:
        await connection.close()


async def watch_file(path: Path) -> None:
    """Put the triggers into the migrated SQLite database at `path`."""
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(_SQLITE)
