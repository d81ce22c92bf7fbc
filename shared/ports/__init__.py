"""What the crawler requires of an engine, as protocols: bare nouns, as narrow as their use.

A port states its guarantees and its errors. An adapter must keep both.
"""
