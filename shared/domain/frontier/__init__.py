"""The frontier's rules and values: what owners read, decide and write.

`states` has the states of URLs and crawls, positions and fences. The rows and change sets of SQL are in `store_model`.
The one table of outcomes and retries is in `failure`; delays and back-off are in `politeness`. When stored pages are
fetched again is in `recrawl`, with `change_rate` and `recrawl_budget`. Assigning partitions to masters is in
`placement`. Operators' commands are described in `commands` and `command_progress`. A backup's holds on deleting
reports are in `purge_holds`. How much work waits is described in `lag`.
"""
