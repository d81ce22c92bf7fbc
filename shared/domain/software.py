"""The name and version of this software.

The User-Agent, WARC files (`software`), the wheel and the console show them.
"""

from typing import Final

NAME: Final = "Orbweaver"
VERSION: Final = "0.1.0"
