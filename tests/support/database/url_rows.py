"""The table `urls` for those who look at it past the store: with whole URLs, however its rows keep them."""

from typing import Final

URLS: Final = (
    "(SELECT t.crawl_id, t.host_id, t.fingerprint, t.state, t.depth, t.reason, t.lease_id, CASE substr(t.url, 1, 1)"
    " WHEN '/' THEN 'https://' || o.host || t.url WHEN ':' THEN 'http://' || o.host || substr(t.url, 2) ELSE t.url END"
    " AS url FROM urls t JOIN hosts o ON o.host_id = t.host_id)"
)
"""What stands behind FROM."""
