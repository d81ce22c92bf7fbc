"""Processes killed, stopped and starved, links cut, silent and slow, a disk full: drawn from a seed, judged by what is
left. How that is done, and what judges it, is in `tests/support/faults` and has its own tests here.
"""
