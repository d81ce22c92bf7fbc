"""Real processes of Orbweaver for tests: clusters, commands, and measurements of them."""
