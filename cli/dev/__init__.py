"""Commands for developers.

They run tests, lint and benchmarks, renew lock files, set up a clone, build the tag scanner, and print the OpenAPI
document and versions.
"""
