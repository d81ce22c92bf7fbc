"""What waits, and how fast it goes, as they are shown."""

from datetime import datetime

from pydantic import Field

from api.schemas.model import Model, moment_of
from shared.domain.lag import Waiting
from shared.ports.broker import Delivered
from shared.wire.events import Event


class Queue(Model):
    """What waits at one place."""

    count: int
    oldest_s: float | None = Field(description="For how long the oldest has waited; null where nothing waits.")
    at_least: bool = Field(description="There are so many or more: only a bounded number was looked at.")


class Lag(Model):
    """What waits, in the order in which it moves on."""

    at: datetime
    due_urls: Queue = Field(
        description="URLs that nothing but politeness, budgets and the room of workers holds back. The oldest is the "
        "host's queue that was not served for the longest time."
    )
    shards_pending: Queue = Field(description="URL shards that no worker has begun, since they were leased.")
    shards_in_flight: Queue = Field(description="URL shards that a worker has begun, since they were leased.")
    reports_pending: Queue | None = Field(
        description="Reports that no owner has applied, of all crawls; null while the broker does not answer."
    )


class Rate(Model):
    """Growth a second over the last while."""

    window_s: int = Field(description="Over the last so many seconds.", examples=[10])
    over_s: float = Field(description="The seconds that were looked at: fewer, soon after another leader began.")
    pages_per_s: float
    bytes_per_s: float


class Rates(Model):
    """How fast a crawl goes, as the leader counted: every master tells the same."""

    counted_at: datetime = Field(
        description="It is counted about every second for as long as a leader is there, and told while it changes."
    )
    over: list[Rate]


def waiting_body(waiting: Waiting) -> Queue:
    """What waits, as it is shown."""
    oldest_s = None if waiting.oldest_s is None else round(waiting.oldest_s, 3)
    return Queue(count=waiting.count, oldest_s=oldest_s, at_least=waiting.more)


def rates_body(stored: Delivered, event: Event) -> Rates:
    """The rates in a crawl's progress."""
    return Rates(
        counted_at=moment_of(stored.at_ns // 1_000_000), over=[Rate(**each) for each in event.data.get("rates", [])]
    )
