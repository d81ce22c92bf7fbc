"""The time of the last use of each API key: kept in memory, and stored in the database once a minute."""

import asyncio
from typing import Final, NoReturn

import structlog

from shared.domain.errors import Transient
from shared.ports.catalog import Catalog

log = structlog.get_logger("orb.api")

STORE_S: Final = 60.0


class KeyUses:
    """Collects the times at which API keys were used, and stores them in the database once a minute.

    `note` is called only for valid keys, so memory has at most one entry for each key.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._uses: dict[str, int] = {}

    def __repr__(self) -> str:
        return f"<KeyUses {len(self._uses)} to store>"

    def note(self, key_id: str, now_ms: int) -> None:
        """Record that the key was used at `now_ms` (Unix ms). `run` or `store` writes it to the database later."""
        self._uses[key_id] = now_ms

    async def run(self) -> NoReturn:
        """Call `store` once a minute until cancelled."""
        while True:
            await asyncio.sleep(STORE_S)
            await self.store()

    async def store(self) -> None:
        """Write the recorded times to the database. If the database does not answer, keep them for the next call."""
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
