"""Commands that run crawls and clusters on this machine.

- `crawl` is `orb crawl`. `crawl_args` checks its arguments. `local_run.LocalRun` runs NATS, a master and workers.
- `up` is `orb up`. `local_cluster.LocalCluster` runs etcd, NATS, masters and workers.
- `process_group` starts and ends child processes. `supervisor` restarts them within a budget.
- `crawl_folder` and `cluster_folder` describe the files in a folder. `folder_lock` lets only one command at
  a time use such a folder.
- `member` and `roles` are the commands that the master and worker processes run.
"""
