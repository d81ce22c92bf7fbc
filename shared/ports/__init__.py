"""What the crawler requires of the outside (database, broker, coordinator, disks, clocks), as protocols called ports.

A port has only the methods that its callers need. It states its guarantees and its errors. An adapter must keep both.
"""
