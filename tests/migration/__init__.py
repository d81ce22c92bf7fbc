"""Schemas moving under old and new code."""
