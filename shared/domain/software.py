"""What this software calls itself: in User-Agent, in archives (`software`), on the wheel and on the console."""

from typing import Final

NAME: Final = "Orbweaver"
VERSION: Final = "0.1.0"
