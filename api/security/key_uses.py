"""The last use of each API key: noted in memory, stored once a minute."""

import asyncio
from typing import Final, NoReturn

import structlog

from shared.domain.errors import Transient
from shared.ports.catalog import Catalog

log = structlog.get_logger("orb.api")

STORE_S: Final = 60.0


class KeyUses:
    """Notes when keys are used. Only valid keys are noted, so there are no more notes than keys."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._uses: dict[str, int] = {}

    def __repr__(self) -> str:
        return f"<KeyUses {len(self._uses)} to store>"

    def note(self, key_id: str, now_ms: int) -> None:
        """Note that a key is used now."""
        self._uses[key_id] = now_ms

    async def run(self) -> NoReturn:
        """Store the notes once a minute until cancelled."""
        while True:
            await asyncio.sleep(STORE_S)
            await self.store()

    async def store(self) -> None:
        """Store the notes now. Without a database they are kept for the next time."""
        uses, self._uses = self._uses, {}
        if not uses:
            return
        try:
            await self._catalog.note_uses(uses)
        except Transient as error:
            self._uses = uses | self._uses
            log.debug("key_uses.postponed", error=str(error))
        except BaseException:
            self._uses = uses | self._uses
            raise
