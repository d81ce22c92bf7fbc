"""The frontier's rules and values: what owners read, decide and write.

`states` has the states of URLs and crawls, positions in the reports stream, and fences. The rows and change sets of SQL
are in `store_model`. The table of fetch outcomes and retries is in `failure`; delays and back-off are in `politeness`.
When stored pages are fetched again is in `recrawl`, with `change_rate` and `recrawl_budget`. Assigning partitions to
masters is in `placement`. Operators' commands are described in `commands` and `command_progress`. The holds with which
a backup stops the deletion of reports are in `purge_holds`. How much work waits is described in `lag`.
"""
