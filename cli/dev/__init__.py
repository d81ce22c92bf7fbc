"""Commands for developers: tests, lint, benchmarks, lock files, set-up of a clone, the OpenAPI document."""
