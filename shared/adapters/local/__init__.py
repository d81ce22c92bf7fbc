"""Adapters for a single machine: coordination in one process, specs in files, clocks, addresses, disks and memory."""
