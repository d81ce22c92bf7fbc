"""Commands for developers and for the set-up of a clone.

They run tests, lint and benchmarks, renew lock files, build the tag scanner, and install the Terraform provider. They
also print the OpenAPI document, shell completions and versions.
"""
