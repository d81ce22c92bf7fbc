"""How a URL stands in the table `urls`: without the host that its row names anyway, where the cluster has it so.

`https://host/path` is kept as `/path`, `http://host/path` as `:/path`, and any other as it is, such as one whose name
ends with a dot. No URL begins with `/` or `:`, so that each row tells how it is kept, and those of both kinds stand
beside each other.

A cluster has it so from its first day or never (`cluster.urls_without_host`): masters of a release before 0009 would
send workers what stands in the column, and there are such beside us only where the database is older than that.
"""

from sqlalchemy import Connection, select

from shared.adapters.sql.schema import cluster

_HOSTLESS = select(cluster.c.urls_without_host).where(cluster.c.id == 1)


def without_host(connection: Connection) -> bool:
    """Whether new rows are to be kept without their host."""
    return bool(connection.execute(_HOSTLESS).scalar())


def shortened(url: str, host: str) -> str:
    """A canonical URL of this host as it is kept; `whole` undoes it."""
    if url.startswith(f"https://{host}/"):
        return url[8 + len(host) :]
    if url.startswith(f"http://{host}/"):
        return ":" + url[7 + len(host) :]
    return url


def whole(kept: str, host: str) -> str:
    """The URL of a row of this host, however it is kept."""
    if kept.startswith("/"):
        return f"https://{host}{kept}"
    if kept.startswith(":"):
        return f"http://{host}{kept[1:]}"
    return kept
