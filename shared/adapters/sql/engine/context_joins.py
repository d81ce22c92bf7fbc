"""The SQL joins that add the context of a seed to the rows of URLs.

They are plain text, so they also run without SQLAlchemy.
"""

from typing import Final

from shared.domain.ids import MAX_PARTITIONS

DEFINED: Final = (
    f" LEFT JOIN seed_contexts s ON s.crawl_id = x.crawl_id AND s.partition = x.host_id % {MAX_PARTITIONS}"
    " AND s.context_id = x.context_id"
)
"""The join that adds the row `s` of `seed_contexts` to each row `x` of `url_contexts`."""


def joined(alias: str) -> str:
    """Return SQL joins that add the seed context of each URL in the relation `alias`, as the column `s.context`.

    The column is NULL for a URL without a context. The relation must have `crawl_id`, `host_id` and `fingerprint`.
    """
    same = " AND ".join(f"x.{key} = {alias}.{key}" for key in ("crawl_id", "host_id", "fingerprint"))
    return f" LEFT JOIN url_contexts x ON {same}{DEFINED}"
