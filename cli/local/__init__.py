"""Crawls and clusters on this machine.

`crawl` is `orb crawl`: `crawl_args` checks its arguments, `local_run.LocalRun` runs broker, master and workers.
`up` is `orb up`: `local_cluster.LocalCluster` runs etcd, broker, masters and workers.
`process_group` starts and ends child processes, `supervisor` restarts them within a budget.
`crawl_folder` and `cluster_folder` describe what lies in a folder; `folder_lock` keeps a second command out.
`member` and `roles` are the processes themselves.
"""
