"""The versioned messages between processes, with their subjects, and the records that members share.

A peer may run an older or newer release. Unknown fields are ignored. A message that cannot be decoded becomes a dead
letter. No message carries a wall-clock deadline.
"""
