"""The joins that add the context of a seed to the rows of URLs, as text: commands that read a folder need it, too."""

from typing import Final

from shared.domain.ids import MAX_PARTITIONS

DEFINED: Final = (
    f" LEFT JOIN seed_contexts s ON s.crawl_id = x.crawl_id AND s.partition = x.host_id % {MAX_PARTITIONS}"
    " AND s.context_id = x.context_id"
)
"""The join of the definition `s` of each row `x` of `url_contexts`."""


def joined(alias: str) -> str:
    """Return the joins that add the context of each URL of the relation `alias`, as the column `s.context`."""
    same = " AND ".join(f"x.{key} = {alias}.{key}" for key in ("crawl_id", "host_id", "fingerprint"))
    return f" LEFT JOIN url_contexts x ON {same}{DEFINED}"
