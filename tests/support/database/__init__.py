"""Databases for tests: stores, rows, statements, and what they cost."""
