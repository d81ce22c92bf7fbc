"""Schedules: when a verb is applied to crawls, and what becomes of each due time. Pure.

- `spec` has the declaration of a schedule and its problems, each with the field and a remedy.
- `times` computes due times. Daylight saving has two rules: a time that does not exist is due at the next one that
  does, and a time that comes twice is due once.
- `firing` decides which due times fire and which are missed, and what a firing does to a crawl. `history` has the
  outcome.

A due time is never computed from the present time alone: the next one follows the last, which the database has. So a
clock that steps back or a new leader cannot make a due time come twice.
"""
