"""The orb command as a user runs it, all processes real."""
