"""Agreement with outside specifications and with independent implementations of them."""
