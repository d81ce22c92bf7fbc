"""Start tags of HTML: the result of a tag scanner, and the regular expression that matches an attribute of a tag."""

import re
from typing import Final, NamedTuple, Protocol

ATTRIBUTE: Final = re.compile(
    rb"[ \t\n\f\r/]*+(?:(?P<end>>)|(?P<name>[^ \t\n\f\r/>][^ \t\n\f\r/>=]*+)"
    rb"(?:[ \t\n\f\r]*+=[ \t\n\f\r]*+"
    rb"(?:\"(?P<double>[^\"]*+)\"|'(?P<single>[^']*+)'|(?P<open>[\"'])|(?P<bare>[^ \t\n\f\r>]++)|(?=>)))?)"
)
"""Matches one attribute after a tag's name, or the `>` that ends the tag.

The group `open` is the first quote of a value whose second quote is missing.
"""


class Scan(NamedTuple):
    """The result of a tag scanner for a page. Lists are in document order, with repeats.

    - `hrefs`: the raw href values of plain links (`a` elements without rel, whose href has no NUL or CR).
    - `tags`: the start tags of other elements with links or metadata: raw bytes without `<`, up to and including `>`.
    - `before`: for each of `tags`, how many of `hrefs` come before it in the page.
    - `title`: the raw text of the first title element.
    - `cut`: True if scanning stopped at the limit.
    """

    hrefs: list[bytes]
    tags: list[bytes]
    before: list[int]
    title: bytes
    cut: bool


class ScanTags(Protocol):
    """The type of a tag scanner: a function that finds the start tags of a page.

    `workers.parse.tags.scan_tags` is one.
    """

    def __call__(self, html: bytes, *, images: bool = False, xml: bool = False, limit: int = 1_000_000) -> Scan: ...
