"""Items, as they are shown."""

from datetime import datetime
from typing import Any, Final

import msgspec
from pydantic import Field

from api.schemas.model import Model, moment_of
from shared.domain.items import StoredItem

ITEM_ID: Final = r"^[0-9a-f]{32}$"


class Item(Model):
    """What a rule took out of a page."""

    id: str = Field(
        description="Its name in the crawl, the same whenever its page is fetched.",
        examples=["259b8e05857a7c0c0d60c4d4d9d40bd7"],
    )
    rule: str = Field(description="The rule's name.", examples=["product"])
    url: str = Field(description="The page's.", examples=["https://example.org/p/1"])
    page: str = Field(description="The page's `id`.", examples=["4099-8a5edab282632443219e051e4ade2d1d"])
    fetched_at: datetime = Field(description="When the page was fetched, by the worker's clock.")
    data: dict[str, Any] = Field(
        description="Every field of the rule: a value, a list of values, or null.",
        examples=[{"title": "Bolt M8", "price": "1.50", "tags": ["steel", "bolt"]}],
    )


def item_body(item: StoredItem) -> Item:
    """The item as it is shown."""
    return Item(
        id=item.id.hex(),
        rule=item.rule,
        url=item.url,
        page=f"{item.host_id}-{item.fingerprint.hex()}",
        fetched_at=moment_of(item.at_ms),
        data=msgspec.json.decode(item.data),
    )
