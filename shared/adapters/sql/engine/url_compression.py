"""Shortens URLs for the table `urls`: without the host, which the row has anyway.

`https://host/path` is stored as `/path`, `http://host/path` as `:/path`. Any other URL is stored whole, such as one
whose host ends with a dot.
"""


def shortened(url: str, host: str) -> str:
    """Return the stored form of a canonical URL of this host, without its host if possible. `whole` is the inverse."""
    if url.startswith(f"https://{host}/"):
        return url[8 + len(host) :]
    if url.startswith(f"http://{host}/"):
        return ":" + url[7 + len(host) :]
    return url


def whole(kept: str, host: str) -> str:
    """Return the canonical URL whose stored form is `kept`, in a row of the host `host`. `shortened` is the inverse."""
    if kept.startswith("/"):
        return f"https://{host}{kept}"
    if kept.startswith(":"):
        return f"http://{host}{kept[1:]}"
    return kept
