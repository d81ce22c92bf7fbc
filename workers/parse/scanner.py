"""The tag scanner of this process: the compiled one if it is built, else `tags.py`. Both give the same results."""

import os
from typing import Final

from workers.parse.compiled import Choice, chosen
from workers.parse.start_tags import ScanTags

CHOICE: Final = chosen(os.environ)


def _scanner(choice: Choice) -> ScanTags:
    if choice.scan is not None:
        return choice.scan
    from workers.parse.tags import scan_tags  # its expressions take 5 ms to compile

    return scan_tags


scan_tags: Final = _scanner(CHOICE)
