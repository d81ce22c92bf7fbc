"""What goes between processes: versioned messages and the subjects they travel under.

A peer may be older or newer: unknown fields are ignored, an undecodable message becomes a dead letter, and no message
carries a deadline on anybody's wall clock.
"""
