"""The messages between processes, versioned, and their subjects.

A peer may be older or newer. Unknown fields are ignored, an undecodable message becomes a dead letter, and no message
carries a wall-clock deadline.
"""
