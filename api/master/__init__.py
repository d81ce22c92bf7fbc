"""The two masters: compositions of the other packages, with their run loops.

- `cluster_master.ClusterMaster` is a member of a cluster: it registers, may lead, and owns its assigned partitions.
- `standalone.Standalone` owns every partition of one folder's database and works on one crawl until it is finished.

Both run the same owners (`api.frontier`); only coordination differs.
"""
