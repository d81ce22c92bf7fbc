"""A simulated cluster: real owners in a world whose time and messages a test moves."""
