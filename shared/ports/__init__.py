"""The ports: protocols that state what the crawler requires of databases, brokers, coordinators, disks and clocks.

A port has only the methods that its callers need. It states its guarantees and its errors. An adapter must keep both.
"""
