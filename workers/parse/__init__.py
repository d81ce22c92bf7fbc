"""Turns the bytes of a response into links: finds the charset, scans the document, reads its references.

All functions are pure. They never raise, whatever the response contains.
"""
