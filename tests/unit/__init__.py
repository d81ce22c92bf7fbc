"""Pure code and its properties; milliseconds each."""
