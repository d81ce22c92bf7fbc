"""The work for crawls that is done once for a cluster or a master, outside partitions.

- `controller.CrawlController` reads what changed, and does what the function `reconcile.reconcile` decides. On the
  leader it also publishes seeds, counts the time in which crawls are worked on, and ends crawls.
- `known_crawls` keeps the crawls as they were read, and marks those that must be decided on again.
- `finished_check` proves that a crawl is finished.
- `active_crawls` loads and unloads the crawls that this master dispatches.
- `seed_upload` and `seed_messages` publish seeds as discoveries, durable before they count as accepted.
- `commands` publishes an operator's commands to the owners of partitions.
- `garbage_collector` removes the rows of deleted crawls; `retention_sweeper` removes rows past their retention.
- `item_writer` fills the table of items from the stream of items.

Periodic work is done in passes. Each pass compares the current state with what was done, so it completes what a crash
interrupted.
"""
