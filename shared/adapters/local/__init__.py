"""Adapters for a single machine: specs in files, the public suffix list, clocks, addresses, disks and memory."""
