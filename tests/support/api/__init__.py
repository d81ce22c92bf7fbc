"""Masters and clients for tests of the REST API."""
