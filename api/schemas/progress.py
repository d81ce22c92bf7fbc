"""The response bodies for the lag of the cluster or a crawl, and for the rates of a crawl."""

from datetime import datetime

from api.schemas.model import Model, field, moment_of
from shared.domain.frontier.lag import Waiting
from shared.ports.broker import Delivered
from shared.wire.events import Event


class Queue(Model):
    """The number of entries that wait at one stage, and how long the oldest entry has waited."""

    count: int = field("The number of entries that wait.", 12)
    oldest_s: float | None = field("Seconds that the oldest entry has waited. Null if the queue is empty.", 1.5)
    is_lower_bound: bool = field("True if `count` may be higher: only a bounded number of entries was counted.")


class Lag(Model):
    """The work that waits at each stage, in the order in which URLs pass through the stages."""

    at: datetime = field("When the numbers were read.", "2030-01-01T08:12:30Z")
    due_urls: Queue = field(
        "URLs that could be dispatched now but for politeness, budgets and free workers. Its oldest "
        "entry is the host queue that was served longest ago."
    )
    shards_pending: Queue = field("URL shards that were leased and that no worker has begun.")
    shards_in_flight: Queue = field("URL shards that a worker has begun.")
    reports_pending: Queue | None = field(
        "Reports of workers, of all crawls, that no owner has applied. Null while NATS does not answer."
    )


class QueuedParts(Model):
    """The number of queued URLs of a crawl, split by the reason why they are queued."""

    new: int = field("URLs that were never fetched, or are fetched again for their links.", 15)
    retry: int = field("URLs that wait for another attempt.", 2)
    revisit: int = field("Stored pages that wait for their next fetch.", 3)


class Rate(Model):
    """The average number of pages and bytes that a crawl stored per second during the most recent window of time."""

    window_s: int = field("The length of the window in seconds.", 10)
    measured_s: float = field(
        "Seconds of the window that were measured. It is shorter soon after a change of leaders.", 10.0
    )
    pages_per_s: float = field("Stored pages per second.", 4.2)
    bytes_per_s: float = field("Stored bytes per second.", 76650.0)


class Rates(Model):
    """The current speed of a crawl over several windows of time, as the leader measured it."""

    counted_at: datetime = field(
        "When the leader counted. It counts about once a second and publishes changes.", "2030-01-01T08:12:30Z"
    )
    windows: list[Rate] = field("The rates over several windows.")


def waiting_body(waiting: Waiting) -> Queue:
    """Return the number of waiting entries of a stage, and the age of the oldest, as the API shows them."""
    oldest_s = None if waiting.oldest_s is None else round(waiting.oldest_s, 3)
    return Queue(count=waiting.count, oldest_s=oldest_s, is_lower_bound=waiting.more)


def rates_body(stored: Delivered, event: Event) -> Rates:
    """Return the rates of a crawl as the API shows them.

    - `event`: the progress event of the crawl, decoded from the message `stored`.
    - `stored`: the message, which has the time at which the broker stored the event.
    """
    return Rates(
        counted_at=moment_of(stored.at_ns // 1_000_000), windows=[Rate(**each) for each in event.data.get("rates", [])]
    )
