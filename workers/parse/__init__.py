"""Bytes to links: the charset, the document, and what in it refers to other URLs.

Everything here is a pure function of a response; nothing it meets on the web is an exception.
"""
