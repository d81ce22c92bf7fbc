"""What masters and workers have in common: the rules, the ports, the messages, and the adapters to the engines.

`domain` decides (no clock, no I/O), `ports` name what is asked of an engine, `wire` is what goes between processes,
and `adapters` speak to the engines. Imports go in one direction, adapters -> wire -> ports -> domain; the checks
enforce it.
"""
