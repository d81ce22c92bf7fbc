"""Real engines for tests, etcd, NATS and PostgreSQL, and proxies in front of them."""
