"""The response bodies of items."""

from datetime import datetime
from typing import Any, Final

import msgspec

from api.schemas.model import SEED_LABELS, SEED_SOURCE, Model, field, moment_of
from shared.domain.frontier.seed_contexts import labels_of, source_of
from shared.domain.reads.items import StoredItem

ITEM_ID: Final = r"^[0-9a-f]{32}$"


class Item(Model):
    """An item: a record that a rule of the spec extracted from a page."""

    id: str = field("The item's id. It is the same for every fetch of its page.", "259b8e05857a7c0c0d60c4d4d9d40bd7")
    rule: str = field("The name of the rule that extracted it.", "product")
    url: str = field("The URL of its page.", "https://example.org/p/1")
    page: str = field("The id of its page.", "4099-8a5edab282632443219e051e4ade2d1d")
    fetched_at: datetime = field("When its page was fetched, by the worker's clock.", "2030-01-01T08:12:30Z")
    data: dict[str, Any] = field(
        "The fields of the rule. A value is a string, a list of strings, or null.",
        {"title": "Bolt M8", "price": "1.50", "tags": ["steel", "bolt"]},
    )
    labels: dict[str, str] = field(SEED_LABELS, {"team": "search"})
    source: str | None = field(SEED_SOURCE, "https://example.org/members.csv")


def item_body(item: StoredItem) -> Item:
    """Return a stored item as the API shows it."""
    return Item(
        id=item.id.hex(),
        rule=item.rule,
        url=item.url,
        page=f"{item.host_id}-{item.fingerprint.hex()}",
        fetched_at=moment_of(item.at_ms),
        data=msgspec.json.decode(item.data),
        labels=labels_of(item.context),
        source=source_of(item.context),
    )
