"""The frontier's rules and values: what owners read, decide and write.

- `states`: the states of URLs and crawls, positions in the reports stream, and fences.
- `store_model`: the rows and change sets of SQL.
- `failure`: the table of fetch outcomes and retries. `politeness`: delays and back-off.
- `recrawl`, with `change_rate` and `recrawl_budget`: when stored pages are fetched again.
- `placement`: which master owns which partition.
- `commands` and `command_progress`: what operators order, and how far it is applied.
- `purge_holds`: the holds with which a backup stops the deletion of reports.
- `lag`: how much work waits.
"""
