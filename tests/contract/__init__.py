"""What a port promises, run against each of its adapters."""
