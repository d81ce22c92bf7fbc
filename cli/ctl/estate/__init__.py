"""The declared resources of a cluster as files: read, plan, apply, compare, prune and export them.

`kinds` is the table of what files may declare. `declared` reads the files, and `plans` compares them with the cluster.
`apply` and `prune` change the cluster. `export` writes files of what exists.
"""
