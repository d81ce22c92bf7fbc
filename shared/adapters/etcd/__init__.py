"""etcd: leadership, membership, partition ownership and watched configuration of a cluster."""
