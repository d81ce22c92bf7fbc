"""Parts joined on real engines, servers and processes."""
