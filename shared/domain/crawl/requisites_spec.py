"""Which requisites of a page are fetched. A requisite is what a page needs to be replayed, such as an image."""

from enum import StrEnum
from typing import Final

MAX_REQUISITES: Final = "max_requisites"
REQUISITE_HOST: Final = "requisite_host"
REQUISITES_PER_PAGE: Final = "max_requisites_per_page"
"""The exclusion reason of requisites if their page has more of them than the limit."""

MAX_REQUISITE_HOPS: Final = 5
"""The maximum of stylesheets and redirects in a row between a page and its requisite."""


class Requisites(StrEnum):
    """Which requisites of a page are fetched: none, those on the page's own host, or all."""

    NONE = "none"
    SAME_HOST = "same-host"
    ALL = "all"
