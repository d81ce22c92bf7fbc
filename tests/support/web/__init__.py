"""Web servers for tests: sites, the log of their exchanges, and judges of that log."""
