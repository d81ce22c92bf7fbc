"""Stand-ins of a single machine: coordination inside one process, for a crawl that needs no cluster."""
