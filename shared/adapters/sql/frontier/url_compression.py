"""The form of a URL in the table `urls`: without its host, which the row has anyway, if the cluster is set so.

`https://host/path` is stored as `/path`, `http://host/path` as `:/path`. Any other URL is stored whole, such as one
whose host ends with a dot. No URL begins with `/` or `:`, so each row shows its form, and a table may have both forms.

`cluster.urls_without_host` is fixed when the cluster is created. Masters from before migration 0009 would send workers
the column as it is. Such masters can run beside this one only on a database older than 0009.
"""

from sqlalchemy import Connection, select

from shared.adapters.sql.engine.schema import cluster

_HOSTLESS = select(cluster.c.urls_without_host).where(cluster.c.id == 1)


def without_host(connection: Connection) -> bool:
    """Return True if new rows are stored without their host."""
    return bool(connection.execute(_HOSTLESS).scalar())


def shortened(url: str, host: str) -> str:
    """Return the stored form of a canonical URL of this host. `whole` is the inverse."""
    if url.startswith(f"https://{host}/"):
        return url[8 + len(host) :]
    if url.startswith(f"http://{host}/"):
        return ":" + url[7 + len(host) :]
    return url


def whole(kept: str, host: str) -> str:
    """Return the URL of a row of this host, from either form."""
    if kept.startswith("/"):
        return f"https://{host}{kept}"
    if kept.startswith(":"):
        return f"http://{host}{kept[1:]}"
    return kept
