"""What the crawler asks of an engine, as protocols: bare nouns, as narrow as their use.

A port states its guarantees and its errors; an adapter that cannot keep them is no adapter of that port.
"""
