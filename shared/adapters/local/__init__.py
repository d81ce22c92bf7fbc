"""Adapters for a single machine, such as coordination inside one process for a crawl without a cluster."""
