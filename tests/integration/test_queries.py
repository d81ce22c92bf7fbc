"""A query gives the same rows by the driver as by SQLAlchemy, and a reader raises what the driver's errors mean."""

from pathlib import Path

import pytest
from sqlalchemy.exc import DatabaseError, IntegrityError

from shared.adapters.sql.catalog.crawl_reader import CrawlReader
from shared.adapters.sql.engine.query import Query
from shared.adapters.sql.engine.read_only import ReadFile
from shared.adapters.sql.engine.sqlite import mapped, sqlite_engine
from shared.domain.errors import Permanent, Transient, Unusable

QUERY = Query("SELECT host, blob, n + :more AS n, count(*) FROM (SELECT :host AS host, x'00ff' AS blob, NULL AS n)")


def test_query_gives_the_same_rows_by_both_connections(tmp_path: Path) -> None:
    path = tmp_path / "crawl.db"
    engine = sqlite_engine(path)
    with engine.begin() as connection:
        composed = QUERY.rows(connection, host="a.test", more=2)
    driver = ReadFile(path).connect()
    (row,) = QUERY.rows(driver, host="a.test", more=2)
    assert [tuple(row)] == [tuple(each) for each in composed] == [("a.test", b"\0\xff", None, 1)]
    assert (row.host, row.blob, row.n, row[3]) == ("a.test", b"\0\xff", None, 1)
    first = QUERY.first(driver, host="b.test", more=2)
    assert first is not None
    assert first.host == "b.test"
    assert Query("SELECT 1 WHERE :host = ''").first(driver, host="a.test") is None
    driver.close()
    engine.dispose()


def test_reader_ends_its_snapshot_after_a_failed_query(tmp_path: Path) -> None:
    path = tmp_path / "crawl.db"
    engine = sqlite_engine(path)
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE numbers (n INTEGER)")
    reader, count = CrawlReader(path), Query("SELECT count(*) AS n FROM numbers")
    for sql, error in (("SELECT * FROM urls", Unusable), ("SELECT", Transient)):
        with pytest.raises(error):
            reader.read(Query(sql).rows)
    assert reader.read(count.rows)[0].n == 0
    with engine.begin() as connection:
        connection.exec_driver_sql("INSERT INTO numbers VALUES (1)")
    assert reader.read(count.rows)[0].n == 1, "it reads an old snapshot"
    with pytest.raises(Unusable, match="readonly"):
        reader.read(Query("INSERT INTO numbers VALUES (2) RETURNING n").rows)
    reader.close()
    engine.dispose()


def test_errors_of_the_driver_are_mapped_as_those_of_sqlalchemy(tmp_path: Path) -> None:
    engine = sqlite_engine(tmp_path / "crawl.db")
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE numbers (n INTEGER PRIMARY KEY)")
        connection.exec_driver_sql("INSERT INTO numbers VALUES (1)")
    with pytest.raises(IntegrityError) as repeated, engine.begin() as connection:
        connection.exec_driver_sql("INSERT INTO numbers VALUES (1)")
    assert isinstance(mapped(repeated.value), Permanent)
    (damaged := tmp_path / "damaged.db").write_bytes(b"no database" * 100)
    engine.dispose()
    engine = sqlite_engine(damaged)
    with pytest.raises(DatabaseError) as unreadable, engine.begin() as connection:
        connection.exec_driver_sql("SELECT * FROM numbers")
    assert isinstance(mapped(unreadable.value), Unusable)
    reader = CrawlReader(damaged)
    with pytest.raises(Unusable):
        reader.read(Query("SELECT 1").rows)
    reader.close()
    engine.dispose()
