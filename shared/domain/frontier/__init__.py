"""The frontier's rules and values: what owners read, decide and write.

- `states`: the states of URLs and crawls, positions in the reports stream, and fences.
- `store_model`: the rows that owners read from SQL, and the changes that they write.
- `failure`: the table of fetch outcomes and retries. `politeness`: delays and back-off.
- `recrawl`, with `change_rate` and `recrawl_budget`: when stored pages are fetched again.
- `placement`: which master owns which partition.
- `commands` and `command_progress`: the commands of operators, and how much of each is applied.
- `purge_holds`: the holds with which a backup stops the deletion of reports.
- `lag`: how much work waits.
"""
