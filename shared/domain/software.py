"""The name and version of this software, for the User-Agent, archives (`software`), the wheel and the console."""

from typing import Final

NAME: Final = "Orbweaver"
VERSION: Final = "0.1.0"
