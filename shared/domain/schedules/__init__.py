"""Schedules: when a verb is applied to crawls, and the outcome of each due time. No I/O.

- `spec` has the declaration of a schedule and its problems, each with the field and a remedy.
- `times` computes due times. Daylight saving has two rules. A time that does not exist is due at the next time that
  does. A time that comes twice is due once.
- `firing` decides which due times fire and which are missed, and what a firing does to a crawl. `history` has the
  outcome.

Each due time is computed from the last one, which the database stores, and not from the present time. So a due time
cannot come twice, even if a clock is set back or the leader changes.
"""
