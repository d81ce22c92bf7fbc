"""The versioned messages between processes, with their subjects, and the records that members share.

A peer may be older or newer. Unknown fields are ignored, an undecodable message becomes a dead letter, and no message
carries a wall-clock deadline.
"""
