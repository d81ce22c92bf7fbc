"""Turns the bytes of a response into links: finds the charset, scans the document, reads its references.

All functions are pure, and no content of a response makes them raise.
"""
