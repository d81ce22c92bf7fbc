"""Crawls that have ended, as many as are wanted: only their rows."""

from sqlalchemy import Connection, text


def ending(connection: Connection, crawls: int, spec: str = "{}") -> None:
    """Let there be so many more crawls that were finished, with all that is counted of them."""
    last = connection.execute(text("SELECT max(crawl_id) FROM crawls")).scalar_one()
    connection.execute(
        text(
            "INSERT INTO crawls (name, revision, state, finished_reason, created_at_ms)"
            " VALUES (:name, 1, 'finished', 'complete', 0)"
        ),
        [{"name": f"ended-{last}-{n}"} for n in range(crawls)],
    )
    connection.execute(
        text(
            "INSERT INTO crawl_revisions (crawl_id, revision, spec, created_at_ms)"
            " SELECT crawl_id, 1, :spec, 0 FROM crawls WHERE crawl_id > :last"
        ),
        {"last": last, "spec": spec},
    )
    connection.execute(
        text(
            "INSERT INTO crawl_counters (crawl_id, partition)"
            " SELECT c.crawl_id, p.partition FROM crawls c, partitions p WHERE c.crawl_id > :last"
        ),
        {"last": last},
    )
