"""Triggers in the database that write down who wrote what, in the order in which it was committed: evidence that no
part of the product takes part in.

On PostgreSQL every owner's transaction leaves its fences (which partition, under which term, which member) and the
tables it wrote. SQLite has no sessions to tell apart: there it is the fences, and the terms of leases.

Both leave a row in `faults_turns` for everything that bears on how often a URL may be requested (history.py: Turn).
"""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final

import asyncpg

from shared.domain.frontier.states import UrlState
from tests.support.faults.history import LeaseTurn

MEMBER: Final = "faults.member"
"""The setting of a session that names the member; it is part of the URL that the member gets."""

OWNED: Final = ("urls", "fetches", "queues", "leases", "crawl_counters")
"""Tables that only the owner of a partition may write."""

_TABLES: Final = """
CREATE TABLE faults_turns (
    crawl_id bigint NOT NULL, host_id bigint NOT NULL, fingerprint {blob} NOT NULL, turn integer NOT NULL,
    at_ms bigint NOT NULL);
CREATE TABLE faults_moves (fence bigint PRIMARY KEY);
CREATE TABLE faults_fences (
    n {number}, xid bigint NOT NULL, partition integer NOT NULL, term bigint NOT NULL, member text NOT NULL);
CREATE TABLE faults_leases (
    n {number}, partition integer NOT NULL, term bigint NOT NULL, owner_term bigint NOT NULL);
CREATE TABLE faults_writes (
    xid bigint NOT NULL, relation text NOT NULL, member text NOT NULL, PRIMARY KEY (xid, relation));
"""

_HANDED: Final = f"OLD.state = {UrlState.LEASED:d} AND NEW.state = {UrlState.QUEUED:d} AND NEW.reason IS NULL"
"""A URL goes back to the queue although nothing became of it."""
_BURIED: Final = f"OLD.state = {UrlState.LEASED:d} AND NEW.state = {UrlState.FAILED:d} AND NEW.reason = 'poison'"
_REGRANTED: Final = (
    f"SELECT crawl_id, host_id, fingerprint, {LeaseTurn.REGRANTED:d}, {{now}} FROM urls WHERE crawl_id = NEW.crawl_id"
    f" AND host_id = NEW.host_id AND state = {UrlState.LEASED:d} AND lease_id = NEW.lease_id"
)
_MOVED: Final = "OLD.outcome_seq <> NEW.outcome_seq OR OLD.stream_created_ns <> NEW.stream_created_ns"
"""The transaction applies outcomes, or begins a new stream; a sweep's does neither."""

_PG_NOW: Final = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
_FILE_NOW: Final = "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)"

_POSTGRES: Final = (
    _TABLES.format(number="bigserial PRIMARY KEY", blob="bytea")
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
CREATE FUNCTION faults_move() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO faults_moves VALUES (txid_current()) ON CONFLICT DO NOTHING;
    RETURN NULL; END $$;
CREATE FUNCTION faults_accepted() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO faults_turns VALUES (NEW.crawl_id, NEW.host_id, NEW.fingerprint, {LeaseTurn.ACCEPTED:d}, {_PG_NOW});
    RETURN NULL; END $$;
CREATE FUNCTION faults_handed() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO faults_turns SELECT NEW.crawl_id, NEW.host_id, NEW.fingerprint,
        CASE WHEN EXISTS (SELECT FROM faults_moves WHERE fence = txid_current())
        THEN {LeaseTurn.HANDED_BACK:d} ELSE {LeaseTurn.ENDED:d} END, {_PG_NOW};
    RETURN NULL; END $$;
CREATE FUNCTION faults_regranted() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO faults_turns {_REGRANTED.format(now=_PG_NOW)};
    RETURN NULL; END $$;
CREATE TRIGGER faults_fence AFTER UPDATE OF version ON partitions FOR EACH ROW EXECUTE FUNCTION faults_fence();
CREATE TRIGGER faults_move AFTER UPDATE OF outcome_seq ON partitions FOR EACH ROW WHEN ({_MOVED})
    EXECUTE FUNCTION faults_move();
CREATE TRIGGER faults_lease AFTER INSERT ON leases FOR EACH ROW EXECUTE FUNCTION faults_lease();
CREATE TRIGGER faults_regranted AFTER UPDATE OF grants ON leases FOR EACH ROW WHEN (OLD.grants > 0)
    EXECUTE FUNCTION faults_regranted();
CREATE TRIGGER faults_accepted AFTER INSERT OR UPDATE ON fetches FOR EACH ROW EXECUTE FUNCTION faults_accepted();
CREATE TRIGGER faults_handed AFTER UPDATE OF state ON urls FOR EACH ROW WHEN ({_HANDED} OR {_BURIED})
    EXECUTE FUNCTION faults_handed();
"""
    + "".join(
        f"CREATE TRIGGER faults_write AFTER INSERT OR UPDATE OR DELETE ON {table}"
        " FOR EACH STATEMENT EXECUTE FUNCTION faults_write();\n"
        for table in OWNED
    )
)

_SQLITE: Final = (
    _TABLES.format(number="integer PRIMARY KEY AUTOINCREMENT", blob="blob")
    + f"""
CREATE TRIGGER faults_fence AFTER UPDATE OF version ON partitions BEGIN
    INSERT INTO faults_fences (xid, partition, term, member) VALUES (0, NEW.partition, NEW.owner_term, '');
END;
CREATE TRIGGER faults_lease AFTER INSERT ON leases BEGIN
    INSERT INTO faults_leases (partition, term, owner_term)
        SELECT NEW.partition, NEW.term, owner_term FROM partitions WHERE partition = NEW.partition;
END;
CREATE TRIGGER faults_move AFTER UPDATE OF outcome_seq ON partitions WHEN {_MOVED} BEGIN
    INSERT OR IGNORE INTO faults_moves SELECT max(n) FROM faults_fences;
END;
CREATE TRIGGER faults_inserted AFTER INSERT ON fetches BEGIN
    INSERT INTO faults_turns VALUES (NEW.crawl_id, NEW.host_id, NEW.fingerprint, {LeaseTurn.ACCEPTED:d}, {_FILE_NOW});
END;
CREATE TRIGGER faults_updated AFTER UPDATE ON fetches BEGIN
    INSERT INTO faults_turns VALUES (NEW.crawl_id, NEW.host_id, NEW.fingerprint, {LeaseTurn.ACCEPTED:d}, {_FILE_NOW});
END;
CREATE TRIGGER faults_handed AFTER UPDATE OF state ON urls WHEN {_HANDED} OR {_BURIED} BEGIN
    INSERT INTO faults_turns SELECT NEW.crawl_id, NEW.host_id, NEW.fingerprint,
        CASE WHEN EXISTS (SELECT 1 FROM faults_moves WHERE fence = (SELECT max(n) FROM faults_fences))
        THEN {LeaseTurn.HANDED_BACK:d} ELSE {LeaseTurn.ENDED:d} END, {_FILE_NOW};
END;
CREATE TRIGGER faults_regranted AFTER UPDATE OF grants ON leases WHEN OLD.grants > 0 BEGIN
    INSERT INTO faults_turns {_REGRANTED.format(now=_FILE_NOW)};
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
