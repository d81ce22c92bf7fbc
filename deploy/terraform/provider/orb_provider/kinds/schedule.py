"""`orb_schedule`: when a verb is applied to crawls."""

from collections.abc import Mapping
from typing import ClassVar

from orb_provider.fields import Field, FieldType, Shape, computed, required
from orb_provider.lifecycle import Lifecycle


class Schedule(Lifecycle):
    """A schedule. Its firings and their results are not attributes of the resource."""

    COLLECTION = "schedules"
    LACKS = "The schedule cannot fire as things are."
    PARTS: ClassVar[Mapping[str, str]] = {"path.schedule": "name"}
    SHAPE = Shape(
        "schedule",
        "A verb at due times, for a crawl or for all crawls with given labels.",
        (
            required(
                "name",
                FieldType.TEXT,
                "The schedule's name: lower-case letters, digits and inner hyphens, at most 63. Another name is "
                "another schedule.",
                replaces=True,
            ),
            required("verb", FieldType.TEXT, "`start`, `refresh`, `reset`, `retry-failed`, `pause` or `resume`."),
            Field("crawl", FieldType.TEXT, "The name of the crawl. Either this or `selector` is set."),
            Field("selector", FieldType.LABELS, "Labels that the crawls must have, at most 100 crawls.", default={}),
            Field(
                "cron",
                FieldType.TEXT,
                "Minute, hour, day of month, month, day of week. Either this or `every_s` is set.",
            ),
            Field("every_s", FieldType.WHOLE, "An interval in seconds, at least 60."),
            Field("zone", FieldType.TEXT, "The IANA time zone of `cron` and `window`.", default="UTC"),
            Field(
                "window",
                FieldType.LABELS,
                'The part of each day whose due times fire, as `{ start = "22:00", end = "06:00" }`. Without it: all '
                "day.",
            ),
            Field("jitter_s", FieldType.WHOLE, "The greatest delay of a firing in seconds.", default=0),
            Field(
                "overlap",
                FieldType.TEXT,
                "What `start` and `reset` do while a run is not over: `skip` or `queue`.",
                default="skip",
            ),
            Field(
                "catch_up",
                FieldType.TEXT,
                "What becomes of due times that are too late: `none`, or `last` to fire for the last of them.",
                default="none",
            ),
            Field("late_s", FieldType.WHOLE, "A due time fires if it is at most this many seconds late.", default=120),
            Field("paused", FieldType.SWITCH, "True: nothing fires.", default=False),
            computed("id", FieldType.TEXT, "The schedule's name.", stable=True, api="name"),
            computed("schedule_id", FieldType.WHOLE, "The schedule's number.", stable=True, api="id"),
            computed("created_at", FieldType.TEXT, "When the schedule was created.", stable=True),
        ),
    )
